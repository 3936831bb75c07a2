"""A second process that compiles while this one does something else. What it compiles, this process
finds on disk. If it fails or dies, this process compiles by itself."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

MIN_CORES = 4
TIMEOUT = 90.0
"""Seconds after which this process no longer waits."""


class Ahead:
    """The running process. It writes a line when the code that this process waits for is on disk,
    and ends when its input is closed, at the latest with this process."""

    def __init__(self, module: str, description: str, marker: Path | None = None) -> None:
        """Run `python -m module` with the description as the first line of its input. `marker` is
        created when the code is on disk."""
        self.marker = marker
        self.ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(max(cores() // 2, 2))},
            text=True,
        )
        self.thread = threading.Thread(target=self._listen, args=(description,), daemon=True)
        self.thread.start()

    def _listen(self, description: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError, ValueError), self.process:
            with suppress(OSError, ValueError):
                self.process.stdin.write(description + "\n")
                self.process.stdin.flush()
                if self.process.stdout.readline() and self.marker is not None:
                    self.marker.parent.mkdir(parents=True, exist_ok=True)
                    self.marker.touch()
            self.ready.set()
            self.process.wait()

    def wait(self) -> None:
        """Return when the code is on disk, when the process died, or after TIMEOUT seconds."""
        if not self.ready.wait(TIMEOUT):
            self.process.kill()


_running: list[Ahead] = []


def start(ahead: Ahead) -> None:
    """Have the engine wait for this process before it compiles the update."""
    _running.append(ahead)


def wait() -> None:
    """Wait for the process that compiles the update, if there is one."""
    while _running:
        _running.pop().wait()


def cores() -> int:
    """The cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
