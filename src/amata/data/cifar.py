"""CIFAR-10 from its original python batches, or from parquet files as on public data hubs."""

import io
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

from amata.data.cifar_batch import parse_batch
from amata.data.images import Arrays
from amata.data.limits import read_file
from amata.errors import InputError, missing

BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def load_cifar10(folder: Path) -> tuple[Arrays, Arrays]:
    """The 50,000 training and 10,000 test images."""
    batches = next(
        (d for d in (folder, folder / "cifar-10-batches-py") if (d / "test_batch").is_file()), None
    )
    if batches is not None:
        return _read_batches([batches / name for name in BATCHES]), _read_batches(
            [batches / "test_batch"]
        )
    train, test = sorted(folder.glob("train-*.parquet")), sorted(folder.glob("test-*.parquet"))
    if train and test:
        return _read_parquet(train), _read_parquet(test)
    raise InputError(
        f"data cifar10: {folder} has neither cifar-10-batches-py nor train-*.parquet and "
        "test-*.parquet; run `amata data fetch cifar10` or set data.root to its folder"
    )


def _read_batches(paths: list[Path]) -> Arrays:
    images, labels = [], []
    for path in paths:
        if not path.is_file():
            raise InputError(f"data cifar10: {path} is missing; run `amata data fetch cifar10`")
        content = read_file(path)
        try:
            x, y = parse_batch(content)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{path} is truncated or not a CIFAR-10 batch ({error}); fetch it again"
            ) from None
        images.append(x)
        labels.append(y)
    return Arrays(
        np.concatenate(images), np.concatenate(labels), classes=10, where=str(paths[0].parent)
    )


def _read_parquet(paths: list[Path]) -> Arrays:
    try:
        files = tuple((path, path.stat().st_mtime_ns) for path in paths)
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be read ({error.strerror}); fetch it again"
        ) from None
    images, labels = _decoded(files)
    return Arrays(images.copy(), labels.copy(), classes=10, where=str(paths[0]))


@lru_cache(maxsize=2)  # decoding is slow, and a comparison loads the data once per run
def _decoded(files: tuple[tuple[Path, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of files, each given with its modification time."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from PIL import Image
    except ImportError:
        raise missing("pyarrow and pillow", "reading parquet", "images") from None

    def decode(content: bytes) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

    images, labels = [], []
    for path, _ in files:
        try:
            table = pq.read_table(path)
            column = table.column("img" if "img" in table.column_names else "image")
            contents = [row["bytes"] for row in column.to_pylist()]
            with ThreadPoolExecutor() as pool:  # decoding releases the GIL
                images.append(np.stack(list(pool.map(decode, contents))))
            labels.append(table.column("label").to_numpy())
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{path} is truncated or not a parquet file of images and labels ({reason}); "
                "fetch it again"
            ) from None
    return np.concatenate(images).transpose(0, 3, 1, 2).copy(), np.concatenate(labels)
