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


_held: set[int] = set()
"""The descriptors of the locks that this process holds."""


def _close_in_child() -> None:
    while _held:
        os.close(_held.pop())


if fcntl is not None:
    # A flock lasts until the last copy of its descriptor is closed. Forked workers, such as those
    # of a DataLoader, outlive a killed process by seconds and must not keep its copy.
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def hold(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Lock the folder for `what`. A second process is refused, or waits. The lock dies with its
    process."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            raise Busy(
                f"another process is {what} in {folder}; wait for it, or stop it first"
            ) from None
        yield
    finally:
        if handle in _held:  # not in a forked child
            _held.remove(handle)
            os.close(handle)
