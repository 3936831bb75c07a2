"""CIFAR-10 and CIFAR-100 from their original python batches, or from parquet files as on public
data hubs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amata.data.cifar_batch import parse_batch
from amata.data.images import Arrays
from amata.data.limits import read_file
from amata.data.parquet import find_parts, read_parquet
from amata.errors import InputError

BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEN = "airplane automobile bird cat deer dog frog horse ship truck"
HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True, kw_only=True)
class _Cifar:
    """The published form of one of the two sets."""

    name: str
    title: str
    folder: str
    train: tuple[str, ...]
    test: str
    labels: str
    """The key of the labels in a batch."""
    classes: tuple[str, ...]

    def load(self, folder: Path) -> tuple[Arrays, Arrays]:
        batches = next(
            (d for d in (folder / self.folder, folder) if (d / self.test).is_file()), None
        )
        if batches is not None:
            train = [batches / name for name in self.train]
            return self._read_batches(train), self._read_batches([batches / self.test])
        train, test = find_parts(folder)
        if train and test:
            parts = (read_parquet(part, (32, 32), names=self.classes) for part in (train, test))
            return next(parts), next(parts)
        raise InputError(
            f"data {self.name}: {folder} has neither {self.folder} nor train-*.parquet and "
            f"test-*.parquet; run `amata data fetch {self.name}` or set data.root to its folder"
        )

    def _read_batches(self, paths: list[Path]) -> Arrays:
        images, labels = [], []
        for path in paths:
            if not path.is_file():
                raise InputError(
                    f"data {self.name}: {path} is missing; run `amata data fetch {self.name}`"
                )
            content = read_file(path)
            try:
                x, y = parse_batch(content, self.labels)
            except (ValueError, OverflowError) as error:
                raise InputError(
                    f"{path} is truncated or not a {self.title} batch ({error}); fetch it again"
                ) from None
            images.append(x)
            labels.append(y)
        x, y = np.concatenate(images), np.concatenate(labels)
        return Arrays(x, y, names=self.classes, where=str(paths[0].parent))


CIFAR10 = _Cifar(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    train=BATCHES,
    test="test_batch",
    labels="labels",
    classes=tuple(TEN.split()),
)
CIFAR100 = _Cifar(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    labels="fine_labels",
    classes=tuple(HUNDRED.split()),
)


def load_cifar10(folder: Path) -> tuple[Arrays, Arrays]:
    """The 50,000 training and 10,000 test images."""
    return CIFAR10.load(folder)


def load_cifar100(folder: Path) -> tuple[Arrays, Arrays]:
    """The 50,000 training and 10,000 test images, with their 100 fine labels."""
    return CIFAR100.load(folder)
