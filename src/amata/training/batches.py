"""What training and validation go over: batches of whatever a caller hands in."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from amata.batch import Batch
from amata.data import Arrays, ImageSet, Loader, Stream
from amata.distributed import current
from amata.recipes import Recipe


class Batches(Protocol):
    @property
    def count(self) -> int | None:
        """The images of an epoch, where that is known beforehand."""
        ...

    def __len__(self) -> int: ...

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]: ...

    def whole(self) -> "Batches":
        """The same batches undivided, where each of several processes has a part of them."""
        ...


def training_batches(data: Any, recipe: Recipe, device: torch.device) -> Batches:
    """The batches that a recipe trains on: shuffled and augmented as functions of seed, epoch and
    batch."""
    images = Arrays(*data) if _is_pair(data) else data
    if not isinstance(images, ImageSet):
        return Stream(images, device)
    c = recipe.data
    pad, flip = (c.pad if c.augment == "crop-flip" else 0), c.augment != "none"
    rank, size = current().rank, current().size
    return Loader(
        images,
        c.batch_size,
        device,
        seed=recipe.train.seed,
        pad=pad,
        flip=flip,
        drop_last=c.drop_last,
        rank=rank,
        size=size,
    )


def held_out_batches(
    data: Any, recipe: Recipe, device: torch.device, at_most: int | None = None
) -> Batches | None:
    """Held-out images: all, or so many from beginning to end, because they may come class by class.
    A stream is always all of it."""
    if data is None:
        return None
    images = Arrays(*data) if _is_pair(data) else data
    if not isinstance(images, ImageSet):
        return Stream(images, device)
    if at_most is not None and at_most < len(images):
        images = images.subset(torch.linspace(0, len(images) - 1, at_most).long())
    return Loader(images, recipe.eval.batch_size, device)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor)
