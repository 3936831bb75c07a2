"""CIFAR-10 from its original python batches, or from parquet files as on public data hubs."""

import io
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

from amata.data.cifar_batch import PIXELS, parse_batch
from amata.data.decode import decode
from amata.data.images import Arrays
from amata.data.limits import check_bytes, read_file
from amata.errors import InputError, missing, shorten

RATIO, SLACK = 20, 1 << 18
"""Bytes that a byte of a parquet file may unpack to, and those that any file may."""
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


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
        np.concatenate(images), np.concatenate(labels), names=CLASSES, where=str(paths[0].parent)
    )


def _read_parquet(paths: list[Path]) -> Arrays:
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} is not a file or is a broken link; fetch it again")
    files = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    images, labels = _decoded(files)
    return Arrays(images.copy(), labels.copy(), names=CLASSES, where=str(paths[0]))


@lru_cache(maxsize=2)  # decoding is slow, and a comparison loads the data once per run
def _decoded(files: tuple[tuple[Path, int, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of files, each given with its modification time and size."""
    try:
        import PIL  # noqa: F401
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise missing("pyarrow and pillow", "reading parquet", "images") from None

    images, labels = [], []
    for path, *_ in files:
        try:
            file = pq.ParquetFile(path)
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
            check_bytes(max(size, PIXELS * file.metadata.num_rows), path)
            if (
                size > RATIO * path.stat().st_size + SLACK
            ):  # encoded images can hardly be compressed
                raise ValueError(f"it unpacks to more than {RATIO} times its size")
            column = "img" if "img" in file.schema_arrow.names else "image"
            # As a dictionary: a value that a small file repeats is held once.
            file = pq.ParquetFile(path, read_dictionary=[f"{column}.bytes"])
            contents: list[bytes] = []
            size = 0
            for batch in file.iter_batches(256, columns=[column, "label"]):
                found = batch.column(column).field("bytes")
                if not pa.types.is_dictionary(found.type) or found.null_count:
                    raise ValueError("its images are not bytes")
                # The dictionary holds the values of earlier batches too.
                used, order = np.unique(found.indices.to_numpy(), return_inverse=True)
                values = found.dictionary.take(pa.array(used)).to_pylist()
                check_bytes(size := size + sum(map(len, values)), path)
                contents += [values[i] for i in order]
                label = batch.column("label")
                if not pa.types.is_integer(label.type) or label.null_count:
                    raise ValueError("its labels are not integers")
                labels.append(label.to_numpy(zero_copy_only=False).astype(np.int64))
            wheres = (f"{path}, image {i}" for i in range(len(contents)))
            with ThreadPoolExecutor() as pool:  # decoding releases the GIL
                images.append(np.stack(list(pool.map(_decode_content, contents, wheres))))
        except InputError:
            raise
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is truncated or not a parquet file of images and labels "
                f"({shorten(error)}); fetch it again"
            ) from None
    return np.concatenate(images).transpose(0, 3, 1, 2).copy(), np.concatenate(labels)


def _decode_content(content: bytes, where: str) -> np.ndarray:
    def check_size(width: int, height: int) -> None:
        if (width, height) != (32, 32):
            raise InputError(f"{where} has {width} x {height} pixels, not 32 x 32; fetch it again")

    return np.asarray(decode(io.BytesIO(content), where, check_size))
