"""A folder that one process at a time may write to."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from amata.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows; there nothing keeps two processes apart
    fcntl = None  # type: ignore[assignment]


class Busy(InputError):
    """A folder that another process holds."""


@contextlib.contextmanager
def hold(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder; `what` is being done there. Whoever comes second is refused, or waits; a
    killed holder holds nothing any more."""
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
