"""Sets of labelled images, and the loader of their batches."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from amata.batch import Batch
from amata.data.augment import crop_flip, cutout
from amata.data.class_names import numbered
from amata.data.convert import check_range, scaled, to_images, to_labels
from amata.errors import InputError
from amata.seeds import Rows, generator


class Draw(NamedTuple):
    """The keys of a training epoch's random draws."""

    seed: int
    epoch: int


class ImageSet(ABC):
    """Labelled images, readable in any order. A subset keeps the `ids` of the whole set."""

    # For type checkers alone: subclasses have them as attributes or compute them when asked.
    if TYPE_CHECKING:

        @property
        def names(self) -> tuple[str, ...]:
            """Of the classes."""

        @property
        def shape(self) -> tuple[int, int, int]:
            """Channels, height and width of an image."""

        @property
        def classes(self) -> int: ...

        @property
        def ids(self) -> Tensor: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def subset(self, positions: Tensor) -> "ImageSet": ...

    @abstractmethod
    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each tensor of positions: the images in [0, 1] and their labels, on the device."""


def check_labels(y: Tensor, classes: int, where: str) -> None:
    if len(y) and int(y.min()) < 0:
        raise InputError(f"{where}: the lowest label is {int(y.min())}; number classes from 0")
    if len(y) and int(y.max()) >= classes:
        raise InputError(
            f"{where}: labels are in [{int(y.min())}, {int(y.max())}], outside the {classes} "
            f"classes 0..{classes - 1}"
        )


def content_hash(*arrays: np.ndarray) -> str:
    """A hash of types, shapes and values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"torch.{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Arrays(ImageSet):
    """Images in memory: uint8 in 0..255 or floats in [0, 1], NCHW or NHWC, moved to the training
    device once."""

    names: tuple[str, ...]
    classes: int
    ids: Tensor

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        ids: Tensor | None = None,
        where: str = "arrays",
        sha256: str | None = None,
    ) -> None:
        """`names` are those of the classes; by default their numbers. `sha256` is the hash of
        pixels and labels, if it is known."""
        classes = len(names) if names is not None and classes is None else classes
        x, y = to_images(x, where), to_labels(y, where)
        if classes is not None and (not isinstance(classes, int) or classes < 1):
            raise InputError(f"{where}: classes = {classes!r} must be a whole number of at least 1")
        if y.is_floating_point() and not torch.equal(y, y.round()):
            raise InputError(f"{where}: labels must be whole numbers, not {y.dtype} fractions")
        y = y.long()
        if x.dim() == 3 and len(x) == len(y):  # grey images
            x = x[:, None]
        if x.dim() and len(x) == 0:
            raise InputError(f"{where}: there are no images")
        if x.dim() != 4 or y.shape != (len(x),):
            way = "; y.argmax(1) makes numbers of one-hot labels" if y.dim() == 2 else ""
            raise InputError(
                f"{where}: images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}; "
                f"give N images (N, C, H, W) and N labels{way}"
            )
        if x.dtype != torch.uint8:
            x = x.detach().float()
            check_range(x, where)
        elif x.numel() and int(x.max()) == 1:
            raise InputError(
                f"{where}: uint8 images are in 0..255, and these have no value above 1; give "
                "x.float(), or 255 * x"
            )
        self.classes = int(y.max()) + 1 if classes is None else classes
        check_labels(y, self.classes, where)
        self.x, self.y = x, y
        self.names = numbered(self.classes, where) if names is None else tuple(map(str, names))
        if len(self.names) != self.classes:
            raise InputError(f"{where}: {len(self.names)} names for {self.classes} classes")
        self.ids = torch.arange(len(x)) if ids is None else ids
        self._sha256 = sha256

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> Tensor:
        return self.y

    def sha256(self) -> str:
        """A hash of pixels and labels."""
        return self._sha256 or content_hash(*(t.cpu().numpy() for t in (self.x, self.y)))

    def subset(self, positions: Tensor) -> "Arrays":
        return Arrays(
            self.x[positions], self.y[positions], names=self.names, ids=self.ids[positions]
        )

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        if self.x.device != device:
            self.x, self.y = self.x.to(device), self.y.to(device)
        # Moved at once: a copy per batch would synchronise with the GPU.
        for positions in _on(device, batches):
            yield scaled(self.x[positions]), self.y[positions]


def _on(device: torch.device, batches: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors, moved in one copy."""
    return (
        torch.cat(list(batches)).to(device).split([len(batch) for batch in batches])
        if batches
        else ()
    )


@dataclass
class Loader:
    """The batches of each epoch of an image set.

    With a seed, order and augmentation are functions of (seed, epoch, batch); without one, images
    come in order and unchanged. An epoch can start at any batch, so runs resume within one. Of
    `size` processes, each reads its `rank`-th part of every batch, with the same augmentation as in
    one process.
    """

    images: ImageSet
    batch_size: int
    device: torch.device
    seed: int | None = None
    pad: int = 0
    flip: bool = False
    alternating: bool = False
    """Whether flips alternate: each image is mirrored in every second epoch."""
    cutout: float = 0.0
    """The sides of the rectangle that is cut out of each image, as a share of the image's."""
    drop_last: bool = False
    rank: int = 0
    size: int = 1

    @property
    def count(self) -> int:
        """Images per epoch."""
        return min(len(self.images), len(self) * self.batch_size)

    def __len__(self) -> int:
        full, rest = divmod(len(self.images), self.batch_size)
        # A last batch with fewer images than processes is dropped: some rank would get none.
        return full if self.drop_last or rest < self.size else full + 1

    def whole(self) -> "Loader":
        """The loader of whole batches, as on one process."""
        return replace(self, rank=0, size=1)

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        """Every `stride`-th batch, from `start` on."""
        n = len(self.images)
        total = 0 if getattr(self.images, "random_crops", False) else int(self.images.ids.max()) + 1
        order = (
            torch.arange(n)
            if self.seed is None
            else torch.randperm(n, generator=generator(self.seed, epoch, "shuffle"))
        )
        wholes = list(order.split(self.batch_size))[start : len(self) : stride]
        batches = (
            [whole.tensor_split(self.size)[self.rank] for whole in wholes]
            if self.size > 1
            else wholes
        )
        draw = None if self.seed is None else Draw(self.seed, epoch)
        mirrored = self._mirrored(epoch)
        named = _on(self.device, [self.images.ids[positions] for positions in batches])
        for number, (ids, (x, y)) in enumerate(
            zip(named, self.images.read(batches, self.device, draw), strict=True)
        ):
            frame, rows = None, self._rows(len(wholes[number])) if self.size > 1 else None
            if self.seed is not None and (self.pad or self.flip or self.cutout):
                index = start + number * stride
                rng = generator(self.seed, epoch, index, "augment", device=self.device)
                if self.pad or self.flip:
                    flip = self.flip if mirrored is None else mirrored[ids]
                    x, frame = crop_flip(x, rng, pad=self.pad, flip=flip, rows=rows)
                if self.cutout:
                    x = cutout(x, self.cutout, rng, rows=rows)
            yield Batch(x, y, ids, total, epoch, frame, rows)

    def _mirrored(self, epoch: int) -> Tensor | None:
        """Which ids alternating flips mirror in this epoch."""
        if self.seed is None or not (self.flip and self.alternating):
            return None
        coins = torch.rand(int(self.images.ids.max()) + 1, generator=generator(self.seed, "flip"))
        return ((coins < 0.5) ^ (epoch % 2 == 1)).to(self.device)

    def _rows(self, n: int) -> Rows:
        """This process's rows of a batch of n images, as split by `tensor_split`."""
        share, rest = divmod(n, self.size)
        first = self.rank * share + min(self.rank, rest)
        return Rows(first, first + share + (self.rank < rest), n)


def labels_of(images: ImageSet) -> Tensor:
    """All labels. A set that does not keep them is read as a whole."""
    known = getattr(images, "labels", None)
    if isinstance(known, Tensor):
        return known
    batches = torch.arange(len(images)).split(256)
    return torch.cat([y for _, y in images.read(batches, torch.device("cpu"), None)])


def split_validation(
    images: ImageSet, valid: float, seed: int, limit: int | None = None
) -> tuple[ImageSet, ImageSet | None, list[int]]:
    """Hold out random images, a number or a share of them, and take at most `limit` of the others:
    these, the validation split, and its ids. With a limit, a share is one of the limit."""
    whole = min(len(images), limit or len(images))
    count = round(valid * whole) if 0 < valid < 1 else int(valid)
    if count == 0 and valid:
        raise InputError(f"data.valid = {valid:g} of {whole} images is none; raise it")
    if count == 0:
        return _sample(images, limit, seed), None, []
    if count >= len(images):
        raise InputError(
            f"data.valid = {valid:g} leaves nothing of the {len(images)} training images; lower it"
        )
    order = torch.randperm(len(images), generator=generator(seed, "valid"))
    held, rest = order[:count].sort().values, order[count:].sort().values
    valid_images = images.subset(held)
    return _sample(images.subset(rest), limit, seed), valid_images, valid_images.ids.tolist()


def _sample(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    """At most `limit` random images, with the same share of every class, and one of each if there
    is room."""
    if limit is None or limit >= len(images):
        return images
    y = labels_of(images).cpu()
    order = torch.randperm(len(y), generator=generator(seed, "limit"))
    by_class = order[y[order].argsort(stable=True)]
    counts = y[by_class].unique_consecutive(return_counts=True)[1]
    # The place of every image within its class, from 0 to 1. The lowest are taken, class by class.
    place = torch.cat([torch.arange(n, dtype=torch.float64) / n for n in counts.tolist()])
    return images.subset(by_class[place.argsort(stable=True)[:limit]].sort().values)
