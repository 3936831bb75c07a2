"""Lock files: one process at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(file: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file, in a folder that exists. A second process waits, or gets `Held`. The lock
    dies with its process, and forked workers do not keep it."""
    if not file.parent.is_dir():  # filelock would create it
        raise FileNotFoundError(2, "No such folder", str(file.parent))
    lock = FileLock(file)
    for last in (False, True):
        try:
            lock.acquire(blocking=wait)
            break
        except Timeout:
            if last or file.exists():
                raise Held from None
            # The holder has just removed it.
    ours = _identity(file)
    try:
        yield
    finally:
        if lock.is_locked:  # not in a forked child
            # While it is held: a process that has opened this file finds it gone and tries again.
            # Not the file of another process, which locked anew after somebody deleted ours.
            try:
                if ours and _identity(file) == ours:
                    with contextlib.suppress(OSError):
                        file.unlink()
            finally:  # also after an interrupt
                lock.release()


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
