"""Death at a chosen change to a folder: what SIGKILL leaves on the disk, at a moment of choice.

    python -m tests.death NUMBER CONDITION PATH ARGUMENTS

is the command `amata ARGUMENTS`, which gets the signal NUMBER as soon as CONDITION, a function
"module:name" of PATH, holds. No test needs to be quick enough to send it in time.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.link", "os.truncate"}


class Killed(BaseException):
    """Nothing catches it but a test."""


class Death:
    """Counts changes to files under a folder. From the `at`-th on it prevents them all: whatever
    the dying program still does, the folder stays as a kill would leave it."""

    def __init__(self) -> None:
        self.folder, self.at, self.changes = "", 0, 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.folder or not (event in CHANGES or (event == "open" and writes(*args))):
            return
        if str(args[0]).startswith(self.folder):
            self.changes += 1
            if self.at and self.changes >= self.at:
                raise Killed


def writes(path: Any, mode: str | None, flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


@cache
def audit() -> Death:
    """The one hook: Python cannot remove it again."""
    death = Death()
    sys.addaudithook(death)
    return death


@contextlib.contextmanager
def dying(folder: Path, at: int = 0) -> Iterator[Death]:
    """Within, the folder can be changed `at` - 1 times; with 0, changes are only counted."""
    death = audit()
    death.folder, death.at, death.changes = str(folder), at, 0
    try:
        yield death
    finally:
        death.folder = ""


def is_written(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def signal_when(number: int, condition: Callable[[], bool]) -> None:
    """Send this process a signal, once, when it opens a file and the condition holds."""
    asking = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal asking
        if event != "open" or asking:
            return
        asking = True  # for good, if it holds
        if condition():
            os.kill(os.getpid(), number)
        else:
            asking = False

    sys.addaudithook(hook)


def main(number: str, condition: str, path: str, *arguments: str) -> None:
    from amata.cli import main as amata

    module, _, name = condition.partition(":")
    holds = getattr(importlib.import_module(module), name)
    signal_when(int(number), lambda: holds(Path(path)))
    amata(list(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
