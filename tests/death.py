"""Death at a chosen change to a folder: what SIGKILL leaves on the disk, at a moment of choice."""

import contextlib
import os
import sys
from collections.abc import Iterator
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
