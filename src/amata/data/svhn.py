"""SVHN, cropped digits of house numbers: from its MATLAB files, or from parquet files as on public
data hubs."""

from pathlib import Path

import numpy as np

from amata.data.cache import Decoded, cached, owned
from amata.data.images import Arrays
from amata.data.matlab import read_mat
from amata.data.parquet import find_parts, read_parquet
from amata.errors import InputError

FILES = "train_32x32.mat", "test_32x32.mat"
CLASSES = tuple("0123456789")


def load_svhn(folder: Path) -> tuple[Arrays, Arrays]:
    """The 73,257 training and 26,032 test digits; the `extra` ones are not read."""
    train, test = (folder / name for name in FILES)
    if train.is_file() and test.is_file():
        return _read(train), _read(test)
    train_files, test_files = find_parts(folder)
    if train_files and test_files:
        return read_parquet(train_files, (32, 32), names=CLASSES), read_parquet(
            test_files, (32, 32), names=CLASSES
        )
    raise InputError(
        f"data svhn: {folder} has neither {' and '.join(FILES)} nor train-*.parquet and "
        "test-*.parquet; run `amata data fetch svhn` or set data.root to its folder"
    )


def _read(path: Path) -> Arrays:
    x, y, _, sha256 = cached([path], {"set": "svhn"}, lambda: _decode(path))
    return Arrays(owned(x), owned(y), names=CLASSES, where=str(path), sha256=sha256)


def _decode(path: Path) -> Decoded:
    x, y = read_mat(path, "X", "y")
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or y.shape != (x.shape[-1], 1):
        raise InputError(
            f"{path}: arrays of shape {x.shape} and {y.shape} are not the digits of SVHN; fetch it "
            "again"
        )
    if not np.isin(y, range(1, 11)).all():
        raise InputError(f"{path}: labels must be 1 to 10, where 10 is the digit 0; fetch it again")
    return Decoded(x.transpose(3, 2, 0, 1).copy(), y[:, 0].astype(np.int64) % 10)
