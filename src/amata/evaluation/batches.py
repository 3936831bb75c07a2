"""The batches of evaluation data in any form, and the part of them that one process evaluates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amata.attacks.checks import check_kinds
from amata.data import ImageSet, Loader, as_images
from amata.errors import InputError


class Shard(NamedTuple):
    """The batches that one of several processes evaluates: `rank`, `rank + size`, ... `sum` adds
    numbers over all processes."""

    rank: int
    size: int
    sum: Callable[[Sequence[float]], list[float]]


SINGLE_PROCESS = Shard(0, 1, list)


class Source(NamedTuple):
    """Batches of images and labels, with their number where it is known."""

    batches: Iterator[tuple[Tensor, Tensor]]
    images: int | None = None
    number: int | None = None
    """Of the batches."""


def batches_of(data: Any, batch_size: int, device: torch.device) -> Source:
    """The batches of data in any form."""
    pair = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
    if pair and all(isinstance(t, Tensor) and t.dtype != torch.uint8 for t in data):
        check_kinds(*data)
        parts = zip(*(t.split(batch_size) for t in data), strict=True)
        return Source(_checked(parts), len(data[0]))
    images = as_images(data)
    if isinstance(images, ImageSet):
        return Source(_checked(Loader(images, batch_size, device).epoch()), len(images))
    try:
        return Source(_checked(images), number=len(images))
    except TypeError:  # an iterable without a length
        return Source(_checked(images))


def _checked(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    for item in batches:
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise InputError(
                f"data must be tensors (x, y) or batches of them, not {type(item).__name__}"
            )
        for value in item[:2]:
            if not isinstance(value, Tensor):
                raise InputError(
                    f"images and labels must be tensors, not {type(value).__name__}; convert "
                    "arrays with torch.from_numpy"
                )
        # A clone of a tensor from torch.inference_mode() can have gradients.
        x, y = (t.clone() if t.is_inference() else t for t in item[:2])
        yield x, y
