"""Processes that compile while this one does something else. What they compile, this process finds
on disk. If one fails or dies, this process compiles by itself."""

import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from amata.errors import shorten

MIN_CORES = 4
TIMEOUT = 90.0
"""Seconds after which this process no longer waits."""


class Helper:
    """A process `python -m module`. It is sent lines of work, and writes a line for every piece
    that is done. It ends when its input is closed, at the latest with this process."""

    def __init__(
        self,
        module: str,
        *,
        threads: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`threads` are those that Inductor compiles with. `note` is told if the process fails."""
        self.note = note
        self.done: dict[str, threading.Event] = defaultdict(threading.Event)
        self.ended = False
        self.last_error = "no message"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)},
            text=True,
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        errors = threading.Thread(target=self._read_errors, daemon=True)
        errors.start()
        with suppress(OSError, ValueError), self.process:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.done[line.strip()].set()
            errors.join()
        self.ended = True
        for event in list(self.done.values()):
            event.set()
        if (self.process.returncode or 0) > 0:
            self.note(f"a process that compiles ahead failed ({shorten(self.last_error, 120)})")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with suppress(OSError, ValueError):
            for line in self.process.stderr:
                self.last_error = line.strip() or self.last_error

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def wait(self, piece: str) -> None:
        """Return when this piece is done, when the process has ended, or after TIMEOUT seconds."""
        event = self.done[piece]
        if not self.ended and not event.wait(TIMEOUT):
            self.process.kill()

    def close(self) -> None:
        """Let the process end after the work that it was sent."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):
            self.process.stdin.close()


_running: dict[str, Helper] = {}


def expect(piece: str, helper: Helper) -> None:
    """Have the engine wait for this process before it compiles this piece."""
    _running[piece] = helper


def wait(piece: str) -> None:
    """Wait for the process that compiles this piece, if there is one."""
    if (helper := _running.pop(piece, None)) is not None:
        helper.wait(piece)


def cores() -> int:
    """The cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
