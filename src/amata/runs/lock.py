"""A lock on a folder: one process writes at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from amata.errors import InputError
from amata.locks import Held, locked
from amata.runs.files import refuse_links, unwritable

LOCK = ".lock"
"""The lock file in the folder. A killed process leaves it behind, unlocked."""


class Busy(InputError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(folder: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Lock the folder for `what`. A second process is refused, or waits. The lock dies with its
    process."""
    refuse_links(folder / LOCK)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK, wait=wait))
        except Held:
            raise Busy(
                f"another process is {what} in {folder}; wait for it, or stop it first"
            ) from None
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unwritable(folder / LOCK, error) from None
        yield
