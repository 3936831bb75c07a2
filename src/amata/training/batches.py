"""Batches for training and validation, from whatever data a caller passes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from amata.attacks.checks import check_images, check_kinds, check_labels
from amata.batch import Batch
from amata.data import ImageSet, Loader, Stream, as_images
from amata.distributed import current
from amata.errors import InputError
from amata.recipes import Recipe
from amata.recipes.schema import PythonData


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


@dataclass(frozen=True)
class Expected:
    """What is known of the training data before they are loaded."""

    shape: tuple[int, int, int]
    """Of an image."""
    count: int
    """Images per epoch."""


class CheckedStream(Stream):
    """A stream whose every batch is checked like the first.

    Pixels and labels are read on the CPU, before they are moved to the training device. Of tensors
    that are on a GPU already only dtype and shape are checked: reading them would make every batch
    wait for the device.
    """

    classes: int | None = None
    """The model's number of classes, once it is known."""

    def check(self, where: str, x: Tensor, y: Tensor) -> None:
        # Bytes are all in range: a float of the same shape stands for them.
        floats = torch.zeros(()).expand(x.shape) if x.dtype == torch.uint8 else x
        try:
            check_kinds(floats, y)
            if x.device.type == "cpu" and x is floats:
                check_images(x, y)
            if y.device.type == "cpu" and self.classes is not None:
                check_labels(y, self.classes)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def training_batches(data: Any, recipe: Recipe, device: torch.device) -> Batches:
    """Training batches, shuffled and augmented as functions of seed, epoch and batch."""
    images = as_images(data, where="training data")
    if not isinstance(images, ImageSet):
        length = recipe.data.batches_per_epoch if isinstance(recipe.data, PythonData) else None
        return CheckedStream(images, device, length, "training data")
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
        alternating=c.flip == "alternating",
        cutout=c.cutout,
        drop_last=c.drop_last,
        rank=rank,
        size=size,
    )


def held_out_batches(
    data: Any, recipe: Recipe, device: torch.device, at_most: int | None = None
) -> Batches | None:
    """Batches that are not trained on: of all images, or of `at_most`, drawn once for all because
    they may be sorted by class. A stream is always used whole."""
    if data is None:
        return None
    images = as_images(data, where="validation data")
    if not isinstance(images, ImageSet):
        stream = CheckedStream(images, device, what="validation data")
        if stream.read_once:
            raise InputError(
                "the validation data are an iterator, which can be read only once, and every epoch "
                "reads them; pass a list, or a function that returns a new iterator"
            )
        return stream
    if at_most is not None and at_most < len(images):
        rng = torch.Generator().manual_seed(0)
        images = images.subset(torch.randperm(len(images), generator=rng)[:at_most].sort().values)
    return Loader(images, recipe.eval.batch_size, device)
