"""The wall clock of a run: what each of its seconds was spent on."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PARTS = ("start", "data", "compile", "train", "valid", "evaluate", "save")
"""start: imports, checks, the device, the network. data: waiting for data, before and in training.
compile: compiling and recording the training step. valid: validation and the collapse guard."""


class WallClock:
    """Counts every second of a run to one of PARTS, the first ones to `start`. What runs in other
    threads does not count; waiting for it does."""

    def __init__(self, age: float = 0.0) -> None:
        """`age` is how many seconds ago the run began."""
        self.part = "start"
        self.began = self.since = time.perf_counter() - age
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Count the with block to `part`."""
        outer = self.part
        self._switch(part)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[self.part] += now - self.since
        self.part, self.since = part, now

    def move(self, seconds: float, part: str) -> None:
        """Count seconds of the present part to another one."""
        self.seconds[self.part] -= seconds
        self.seconds[part] += seconds

    def spent(self) -> float:
        """The seconds of the present part so far."""
        self._switch(self.part)
        return self.seconds[self.part]

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    def table(self) -> dict[str, float]:
        """The seconds of each part so far, and in total."""
        self._switch(self.part)
        parts = {part: round(seconds, 3) for part, seconds in self.seconds.items()}
        return {**parts, "total": round(self.since - self.began, 3)}


def slow_start(package: ModuleType) -> str:
    """A note on a package whose source files Python compiles at every start, or nothing. Images of
    containers often set PYTHONDONTWRITEBYTECODE."""
    spec = package.__spec__
    if not sys.dont_write_bytecode or spec is None or spec.cached is None:
        return ""
    if Path(spec.cached).exists():
        return ""
    return (
        "Python keeps no bytecode here (PYTHONDONTWRITEBYTECODE), so every start takes about 10 s "
        f"longer; unset it, or run once: python -m compileall -q {Path(str(spec.origin)).parent}"
    )


def process_age() -> float:
    """Seconds since this process started. Where the system does not say, the processor time, which
    is about the same while a process starts."""
    try:
        # The name, in parentheses, may hold spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
    return age if started > 0 and age > 0 else time.process_time()
