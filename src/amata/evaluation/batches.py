"""The batches of evaluation data in any form, and the part of them that one process evaluates."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amata.attacks.checks import check_kinds
from amata.batch import Batch
from amata.data import ImageSet, Loader, Stream, as_images
from amata.data.convert import to_batch


class Shard(NamedTuple):
    """The batches that one of several processes evaluates: `rank`, `rank + size`, ... `sum` adds
    numbers over all processes."""

    rank: int
    size: int
    sum: Callable[[Sequence[float]], list[float]]


SINGLE_PROCESS = Shard(0, 1, list)


class Source(NamedTuple):
    """Batches of images and labels, with their number where it is known."""

    batches: Iterator[Batch]
    images: int | None = None
    number: int | None = None
    """Of the batches."""


def batches_of(data: Any, batch_size: int, device: torch.device, workers: int = 0) -> Source:
    """The batches of data in any form; `workers` processes read a Dataset."""
    pair = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
    if pair and all(isinstance(t, Tensor) and t.dtype != torch.uint8 for t in data):
        # Kept where they are and in their precision.
        x, y = to_batch(data, "data")
        check_kinds(x, y)
        parts: Any = list(zip(x.split(batch_size), y.split(batch_size), strict=True))
        return Source(Stream(parts, device).epoch(), len(x))
    images = as_images(data, workers=workers)
    if isinstance(images, ImageSet):
        return Source(Loader(images, batch_size, device).epoch(), len(images))
    try:
        return Source(Stream(images, device).epoch(), number=len(images))
    except TypeError:  # an iterable without a length
        return Source(Stream(images, device).epoch())
