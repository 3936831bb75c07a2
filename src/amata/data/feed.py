"""Prefetching of batches to the device."""

import time
from collections.abc import Iterator
from functools import cache

import torch

from amata.batch import Batch


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Feed:
    """The batches of an iterator. On a GPU they are prepared on a side stream, while the previous
    batch trains.

    `waited` is the time that training waited for data: on a CPU all reading, on a GPU only reading
    that left the device idle.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self.batches = batches
        self.waited = 0.0
        self.stream = _side_stream(device) if device.type == "cuda" else None

    def __iter__(self) -> Iterator[Batch]:
        while True:
            busy = self._mark()
            started = time.perf_counter()
            with torch.cuda.stream(self.stream):  # a no-op for None
                batch = next(self.batches, None)
            if busy is None or busy.query():
                self.waited += time.perf_counter() - started
            if batch is None:
                return
            if self.stream is not None:
                training = torch.cuda.current_stream(self.stream.device)
                training.wait_stream(self.stream)
                for tensor in (
                    batch.x,
                    batch.y,
                    batch.ids,
                    *(batch.frame[:2] if batch.frame else ()),
                ):
                    tensor.record_stream(training)
            yield batch

    def _mark(self) -> torch.cuda.Event | None:
        """An event after the work queued on the device so far."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.stream.device))
        return event
