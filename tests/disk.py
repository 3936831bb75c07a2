"""A disk whose speed a test decides: it takes the place of the thread that writes checkpoints. And
a disk that is full."""

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from amata.training import saver


class Write(Future[None]):
    """One write. It happens when somebody waits for it, at the latest."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.call = call

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.happen()
        return super().exception(timeout)

    def happen(self) -> None:
        if self.done():
            return
        try:
            self.set_result(self.call())
        except BaseException as error:
            self.set_exception(error)


class Disk:
    """Writes at once, or with `slow` only when it is flushed or waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, slow: bool = False) -> None:
        self.slow, self.write = slow, Write(lambda: None)
        monkeypatch.setattr(saver, "ThreadPoolExecutor", lambda *_: self)
        monkeypatch.setattr(saver, "PATIENCE", 0.0)

    def submit(self, call: Callable[..., None], *args: Any) -> Write:
        self.write = Write(lambda: call(*args))
        if not self.slow:
            self.flush()
        return self.write

    def flush(self) -> None:
        self.write.happen()

    def shutdown(self) -> None:
        self.flush()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Within, no file can grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
