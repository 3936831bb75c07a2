"""Iterables of batches, such as a DataLoader, with their own order and randomness."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from amata.batch import Batch
from amata.data.convert import scaled, to_batch
from amata.errors import InputError


class Stream:
    """A user's iterable of (x, y) batches, or a function that returns a new one for every epoch.

    With `length`, an epoch is that many batches. An iterator, such as a generator, then continues
    where the last epoch ended; everything else begins again, within an epoch too if it is short.
    """

    count = None

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        device: torch.device,
        length: int | None = None,
        what: str = "data",
    ) -> None:
        self.batches, self.device, self.length, self.what = batches, device, length, what
        self.read_once = hasattr(batches, "__next__")
        """Whether it is an iterator: its batches come only once."""
        self._taken = 0
        """Batches that an iterator has given so far."""
        self.shuffled = isinstance(getattr(batches, "sampler", None), RandomSampler)
        """Whether it is a DataLoader that draws a new order for every epoch."""

    def __len__(self) -> int:
        if self.length is not None:
            return self.length
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(
                f"the {self.what} have no len(), and the learning rate needs the number of batches "
                "per epoch; pass fit(..., batches_per_epoch=N)"
            ) from None

    def whole(self) -> "Stream":
        return self

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        number = start
        stop = None if self.length is None else self.length - start
        for item in islice(self._items(epoch, start), 0, stop, stride):
            where = f"batch {number + 1} of the {self.what}"
            x, y = to_batch(item, where)
            self.check(where, x, y)
            x, y = x.to(self.device), y.to(self.device)
            yield Batch(scaled(x), y, torch.full((len(x),), -1, device=self.device), epoch=epoch)
            number += stride
        if self.length is not None and number < self.length:
            once = "an iterator can be read only once; pass a function that returns a new one"
            why = once if self.read_once else "there is nothing to begin again with"
            raise InputError(
                f"the {self.what} ended after {number} of {self.length} batches of epoch "
                f"{epoch + 1}: {why}"
            )

    def _items(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch from `start` on."""
        if self.read_once:
            skip = max(0, epoch * (self.length or 0) + start - self._taken)  # after a resume
            for item in islice(self.batches, skip, None):  # type: ignore[arg-type]
                self._taken += 1
                yield item
            return
        skip, more = start, True
        while more:
            more = False
            iterable = hasattr(self.batches, "__iter__")
            fresh: Any = self.batches if iterable else self.batches()  # type: ignore[operator]
            if not hasattr(fresh, "__iter__"):
                raise InputError(
                    f"the {self.what} are a function that returned {type(fresh).__name__}; it must "
                    "return an iterable of batches"
                )
            for item in self._read(fresh):
                more = self.length is not None
                if skip == 0:
                    yield item
                skip = max(0, skip - 1)

    def _read(self, batches: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except RuntimeError as error:
            if "stack expects each tensor to be equal size" not in str(error):
                raise
            raise InputError(
                f"the {self.what} have images of several sizes, which a DataLoader cannot stack: "
                "resize or crop them to one size in the dataset"
            ) from error

    def check(self, where: str, x: Tensor, y: Tensor) -> None:
        """Called with every batch before it is moved to the device. Bytes are not scaled yet."""
