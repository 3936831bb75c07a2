"""Sets of labelled images, and the loader of their batches."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from amata.batch import Batch
from amata.data.augment import crop_flip
from amata.errors import InputError
from amata.seeds import Rows, generator


class Draw(NamedTuple):
    """The keys of a training epoch's random draws."""

    seed: int
    epoch: int


@runtime_checkable
class ImageSet(Protocol):
    """Labelled images, readable in any order. A subset keeps the `ids` of the whole set."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        ...

    @property
    def classes(self) -> int: ...

    @property
    def ids(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def subset(self, positions: Tensor) -> "ImageSet": ...

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each tensor of positions: the images in [0, 1] and their labels, on the device."""
        ...


def check_labels(y: Tensor, classes: int, where: str) -> None:
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise InputError(
            f"{where}: labels are in [{int(y.min())}, {int(y.max())}], outside the {classes} "
            f"classes 0..{classes - 1}"
        )


class Arrays:
    """Images in memory: uint8 in 0..255 or floats in [0, 1], NCHW, moved to the training device
    once."""

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        classes: int | None = None,
        names: Sequence[str] | None = None,
        ids: Tensor | None = None,
        where: str = "arrays",
    ) -> None:
        """`names` are those of the classes; by default their numbers."""
        classes = len(names) if names is not None and classes is None else classes
        try:
            x, y = torch.as_tensor(x), torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{where}: images and labels must be arrays ({error})") from None
        if classes is not None and (not isinstance(classes, int) or classes < 1):
            raise InputError(f"{where}: classes = {classes!r} must be a whole number of at least 1")
        if y.is_floating_point() and not torch.equal(y, y.round()):
            raise InputError(f"{where}: labels must be whole numbers, not {y.dtype} fractions")
        y = y.long()
        if x.dim() != 4 or y.shape != (len(x),) or len(x) == 0:
            raise InputError(
                f"{where}: images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}; "
                "give N images (N, C, H, W) and N labels"
            )
        if x.dtype != torch.uint8:
            x = x.float()
            low, high = x.aminmax()
            if not (low >= 0 and high <= 1):  # also false for NaN
                raise InputError(
                    f"{where}: images are in [{low:.3g}, {high:.3g}]; give uint8 in 0..255 or "
                    "finite floats in [0, 1]"
                )
        self.classes = int(y.max()) + 1 if classes is None else classes
        check_labels(y, self.classes, where)
        self.x, self.y = x, y
        self.names = tuple(map(str, range(self.classes) if names is None else names))
        if len(self.names) != self.classes:
            raise InputError(f"{where}: {len(self.names)} names for {self.classes} classes")
        self.ids = torch.arange(len(x)) if ids is None else ids

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.x)

    def sha256(self) -> str:
        """A hash of pixels and labels."""
        digest = hashlib.sha256()
        for t in (self.x, self.y):
            digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
            digest.update(t.cpu().contiguous().numpy().data)
        return digest.hexdigest()

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
            x = self.x[positions]
            yield (x.float() / 255 if x.dtype == torch.uint8 else x), self.y[positions]


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
        named = _on(self.device, [self.images.ids[positions] for positions in batches])
        for number, (ids, (x, y)) in enumerate(
            zip(named, self.images.read(batches, self.device, draw), strict=True)
        ):
            frame, rows = None, self._rows(len(wholes[number])) if self.size > 1 else None
            if self.seed is not None and (self.pad or self.flip):
                index = start + number * stride
                rng = generator(self.seed, epoch, index, "augment", device=self.device)
                x, frame = crop_flip(x, rng, pad=self.pad, flip=self.flip, rows=rows)
            yield Batch(x, y, ids, total, epoch, frame, rows)

    def _rows(self, n: int) -> Rows:
        """This process's rows of a batch of n images, as split by `tensor_split`."""
        share, rest = divmod(n, self.size)
        first = self.rank * share + min(self.rank, rest)
        return Rows(first, first + share + (self.rank < rest), n)


class Stream:
    """A user's iterable of (x, y) batches, such as a DataLoader, with its own order and
    randomness."""

    count = None

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        try:
            len(batches)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(
                "an iterable of batches needs a len(): learning rate and progress depend on the "
                "number of batches per epoch; wrap it in a class with __iter__ and __len__"
            ) from None
        self.batches, self.device = batches, device

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def whole(self) -> "Stream":
        return self

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        for number, item in enumerate(islice(self.batches, start, None, stride)):
            if not (
                isinstance(item, tuple | list)
                and len(item) >= 2
                and all(isinstance(t, Tensor) for t in item[:2])
            ):
                raise InputError(
                    "data must be tensors (x, y), or an iterable of such batches; convert numpy "
                    "arrays with torch.from_numpy"
                )
            self.check(start + number * stride, *item[:2])
            # A clone of a tensor from torch.inference_mode() can be trained on.
            x, y = (t.clone() if t.is_inference() else t for t in item[:2])
            x, y = x.to(self.device), y.to(self.device)
            yield Batch(x, y, torch.full((len(x),), -1, device=self.device), epoch=epoch)

    def check(self, number: int, x: Tensor, y: Tensor) -> None:
        """Called with every batch before it is moved to the device."""


def as_images(data: Any) -> Any:
    """A pair (x, y) of tensors or arrays as an image set; an image set or an iterable of batches as
    it is."""
    if isinstance(data, ImageSet):
        return data
    if isinstance(data, Dataset) or not hasattr(data, "__iter__"):
        raise InputError(
            f"data must be a pair (x, y) or an iterable of batches, not {type(data).__name__}; "
            "wrap a Dataset: torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=True)"
        )
    pair = isinstance(data, tuple | list) and len(data) == 2
    return Arrays(*data) if pair and isinstance(data[0], Tensor | np.ndarray) else data


def split_validation(
    images: ImageSet, count: int, seed: int
) -> tuple[ImageSet, ImageSet | None, list[int]]:
    """Hold out `count` random images: the rest, the validation split, and its ids."""
    if count == 0:
        return images, None, []
    if count >= len(images):
        raise InputError(
            f"data.valid = {count} leaves nothing of the {len(images)} training images; lower it"
        )
    order = torch.randperm(len(images), generator=generator(seed, "valid"))
    held, rest = order[:count].sort().values, order[count:].sort().values
    valid = images.subset(held)
    return images.subset(rest), valid, valid.ids.tolist()
