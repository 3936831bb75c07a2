"""Map-style datasets (torch's, torchvision's, Hugging Face's, or a list of items) as image sets."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from amata.data.class_names import numbered
from amata.data.convert import check_range, scaled, stacked, to_image, to_label, to_pair
from amata.data.images import Draw, ImageSet
from amata.data.workers import in_workers
from amata.errors import InputError
from amata.seeds import derive


class MapStyle(ImageSet):
    """A dataset of items (image, label), read by worker processes.

    Random transforms of training images are seeded by (seed, epoch, image): they do not depend on
    the number of workers, and a resumed run draws what it would have drawn.
    """

    random_crops: ClassVar[bool] = True
    """Transforms may change the pixels in every epoch, so methods cannot store anything per pixel.
    """

    ids: Tensor

    def __init__(
        self, dataset: Any, workers: int = 0, where: str = "data", ids: Tensor | None = None
    ) -> None:
        self.dataset, self.workers, self.where = dataset, workers, where
        self.ids = torch.arange(len(dataset)) if ids is None else ids
        if len(self.ids) == 0:
            raise InputError(f"{where}: the dataset is empty")

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        x, _ = next(self.read([torch.arange(1)], torch.device("cpu"), None))
        channels, height, width = x.shape[1:]
        return channels, height, width

    @cached_property
    def labels(self) -> Tensor:
        """All labels: this reads every item."""
        batches = torch.arange(len(self)).split(256)
        return torch.cat([y for _, y in self.read(batches, torch.device("cpu"), None)])

    @property
    def names(self) -> tuple[str, ...]:
        """Those that the dataset knows, else numbers, for which all labels are read."""
        names = known_names(self.dataset)
        return names or numbered(int(self.labels.max()) + 1, self.where)

    @property
    def classes(self) -> int:
        return len(self.names)

    def subset(self, positions: Tensor) -> "MapStyle":
        return MapStyle(self.dataset, self.workers, self.where, self.ids[positions])

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        ids = [self.ids[batch] for batch in batches]
        pinned = device.type == "cuda"
        loader = in_workers(_Items(self, draw), ids, self.workers, _same, pin_memory=pinned)
        for found in loader:
            if isinstance(found, InputError):
                raise found
            x, y = (t.to(device, non_blocking=True) for t in found)
            yield scaled(x), y


def known_names(dataset: Any) -> tuple[str, ...] | None:
    """The class names that a dataset has: `classes` of torchvision, `features` of Hugging Face."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset  # torch's Subset
    names = getattr(dataset, "classes", None)
    features = getattr(dataset, "features", None)
    if names is None and isinstance(features, dict):
        found = [getattr(kind, "names", None) for kind in features.values()]
        names = next((value for value in found if value), None)
    if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
        return tuple(names)
    return None


def _same(batch: Any) -> Any:
    return batch


class _Items(Dataset[Any]):
    """Batches by the ids of their images: images as bytes or floats in [0, 1], and labels."""

    def __init__(self, images: MapStyle, draw: Draw | None) -> None:
        self.dataset, self.where, self.draw = images.dataset, images.where, draw

    def __getitems__(self, ids: list[int]) -> tuple[Tensor, Tensor] | InputError:
        with _own_randomness():
            found = [self._item(number) for number in ids]
        # Errors are returned: an exception in a worker would arrive with its traceback.
        try:
            pairs = [
                to_pair(item, f"{self.where}, image {number}")
                for number, item in zip(ids, found, strict=True)
            ]
            x = stacked([to_image(image, self.where) for image, _ in pairs], self.where)
            x = x if x.dtype == torch.uint8 else x.float()
            check_range(x, self.where)
            return x, torch.tensor([to_label(label, self.where) for _, label in pairs])
        except InputError as error:
            return error

    def _item(self, number: int) -> Any:
        if self.draw is not None:
            seed = derive(self.draw.seed, self.draw.epoch, number, "transform")
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
        return self.dataset[number]


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Leave the global generators, from which transforms draw, as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
