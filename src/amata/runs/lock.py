"""A lock on a folder: one process writes at a time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from amata.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no flock: there is no lock
    fcntl = None  # type: ignore[assignment]


class Busy(InputError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Lock the folder for `what`. A second process is refused, or waits. The lock dies with its
    process."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise Busy(
                f"another process is {what} in {folder}; wait for it, or stop it first"
            ) from None
        yield
    finally:
        os.close(handle)
