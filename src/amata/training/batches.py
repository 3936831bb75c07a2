"""Batches for training and validation, from whatever data a caller passes."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from amata.batch import Batch
from amata.data import Arrays, ImageSet, Loader, Stream
from amata.distributed import current
from amata.errors import InputError
from amata.recipes import Recipe


class Batches(Protocol):
    @property
    def count(self) -> int | None:
        """Images per epoch, if known beforehand."""
        ...

    def __len__(self) -> int: ...

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]: ...

    def whole(self) -> "Batches":
        """The same batches undivided: with several processes, each has a part of every batch."""
        ...


def training_batches(data: Any, recipe: Recipe, device: torch.device) -> Batches:
    """Training batches, shuffled and augmented as functions of seed, epoch and batch."""
    images = as_images(data)
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
    """Validation batches: of all images, or of `at_most`, evenly spaced because they may be
    sorted by class. A stream is always used whole."""
    if data is None:
        return None
    images = as_images(data)
    if not isinstance(images, ImageSet):
        return Stream(images, device)
    if at_most is not None and at_most < len(images):
        images = images.subset(torch.linspace(0, len(images) - 1, at_most).long())
    return Loader(images, recipe.eval.batch_size, device)


def as_images(data: Any) -> Any:
    """A pair (x, y) of tensors or arrays as an image set; anything else as it is."""
    if isinstance(data, Dataset):
        raise InputError(
            "data must be a pair (x, y) or an iterable of batches; wrap this Dataset: "
            "torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=True)"
        )
    pair = isinstance(data, tuple | list) and len(data) == 2
    return Arrays(*data) if pair and isinstance(data[0], Tensor | np.ndarray) else data
