"""Sets of labelled images, and the loader that turns one into the batches of an epoch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from amata.batch import Batch
from amata.data.augment import crop_flip
from amata.errors import InputError
from amata.seeds import Rows, generator


class Draw(NamedTuple):
    """Where the randomness of a training epoch comes from."""

    seed: int
    epoch: int


@runtime_checkable
class ImageSet(Protocol):
    """Labelled images that can be read in any order. `ids` names each sample in the whole set that
    a subset was taken from."""

    @property
    def classes(self) -> int: ...

    @property
    def channels(self) -> int: ...

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
            f"{where}: labels lie in [{int(y.min())}, {int(y.max())}], outside the {classes} "
            f"classes 0..{classes - 1}"
        )


class Arrays:
    """Images held in memory: uint8 in 0..255 or floats in [0, 1], NCHW, moved to the training
    device once."""

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        classes: int | None = None,
        ids: Tensor | None = None,
        where: str = "arrays",
    ) -> None:
        x, y = torch.as_tensor(x), torch.as_tensor(y).long()
        if x.dim() != 4 or y.shape != (len(x),) or len(x) == 0:
            raise InputError(
                f"{where}: images of shape (N, C, H, W) and N labels are needed, not "
                f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
        if x.dtype != torch.uint8:
            x = x.float()
            low, high = x.aminmax()
            if not (low >= 0 and high <= 1):  # also false for NaN
                raise InputError(
                    f"{where}: images lie in [{low:.3g}, {high:.3g}]; give uint8 in 0..255 or "
                    "finite floats in [0, 1]"
                )
        self.classes = int(y.max()) + 1 if classes is None else classes
        check_labels(y, self.classes, where)
        self.x, self.y = x, y
        self.channels = x.shape[1]
        self.ids = torch.arange(len(x)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, positions: Tensor) -> "Arrays":
        return Arrays(
            self.x[positions], self.y[positions], classes=self.classes, ids=self.ids[positions]
        )

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        if self.x.device != device:
            self.x, self.y = self.x.to(device), self.y.to(device)
        # Moved once: a copy to a GPU for every batch would make the host wait for what the GPU is
        # at.
        for positions in _on(device, batches):
            x = self.x[positions]
            yield (x.float() / 255 if x.dtype == torch.uint8 else x), self.y[positions]


def _on(device: torch.device, batches: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors, moved together."""
    return (
        torch.cat(list(batches)).to(device).split([len(batch) for batch in batches])
        if batches
        else ()
    )


@dataclass
class Loader:
    """The batches of each epoch of an image set.

    With a seed the order is shuffled and images are augmented, both as functions of (seed, epoch,
    batch); without one the set is read in order, as it is. An epoch may begin at any batch, which
    is how a run resumes. Of several processes, each has its part of every batch: process `rank` of
    `size`, the same images treated alike as in one process.
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
        """The images of an epoch."""
        return min(len(self.images), len(self) * self.batch_size)

    def __len__(self) -> int:
        full, rest = divmod(len(self.images), self.batch_size)
        # A last batch with fewer images than processes is left out: somebody would have none.
        return full if self.drop_last or rest < self.size else full + 1

    def whole(self) -> "Loader":
        """The loader of undivided batches."""
        return replace(self, rank=0, size=1)

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        """The batches from `start` on, or every `stride`th of them."""
        n = len(self.images)
        total = 0 if getattr(self.images, "cut_anew", False) else int(self.images.ids.max()) + 1
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
        """This process's rows of a batch of n images, as `tensor_split` divides it."""
        share, rest = divmod(n, self.size)
        first = self.rank * share + min(self.rank, rest)
        return Rows(first, first + share + (self.rank < rest), n)


class Stream:
    """Somebody's own iterable of (x, y) batches, such as a torch DataLoader; its order and
    randomness stay its own."""

    count = None

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        if not hasattr(batches, "__len__"):
            raise InputError(
                "an iterable of batches needs a len(), so that rates and progress know the "
                "length of an epoch"
            )
        self.batches, self.device = batches, device

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def whole(self) -> "Stream":
        return self

    def epoch(self, epoch: int = 0, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        for item in islice(self.batches, start, None, stride):
            if not (
                isinstance(item, tuple | list)
                and len(item) >= 2
                and all(isinstance(t, Tensor) for t in item[:2])
            ):
                raise InputError(
                    "data must be tensors (x, y), or an iterable of batches of them; "
                    "torch.from_numpy makes a tensor of a numpy array"
                )
            x, y = item[0].to(self.device), item[1].to(self.device)
            yield Batch(x, y, torch.full((len(x),), -1, device=self.device), epoch=epoch)


def split_validation(
    images: ImageSet, count: int, seed: int
) -> tuple[ImageSet, ImageSet | None, list[int]]:
    """Hold out `count` samples, drawn from the seed: the rest, the held-out part, and the latter's
    ids for the record."""
    if count == 0:
        return images, None, []
    if count >= len(images):
        raise InputError(
            f"data.valid = {count} would hold out all of the {len(images)} training images"
        )
    order = torch.randperm(len(images), generator=generator(seed, "valid"))
    held, rest = order[:count].sort().values, order[count:].sort().values
    valid = images.subset(held)
    return images.subset(rest), valid, valid.ids.tolist()
