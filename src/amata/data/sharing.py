"""Data that the runs of a study share."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_kept: dict[Hashable, Any] | None = None


@contextmanager
def shared_data() -> Iterator[None]:
    """Within, `load` reads, decodes and hashes each data set once. Runs with other seeds only split
    it differently."""
    global _kept
    outer, _kept = _kept, {} if _kept is None else _kept
    try:
        yield
    finally:
        _kept = outer


def read_once(key: Hashable, read: Callable[[], T]) -> T:
    """What `read` returns; within `shared_data`, what it returned for this key before."""
    kept = _kept
    if kept is None:
        return read()
    if key not in kept:
        kept[key] = read()
    found: T = kept[key]
    return found
