"""Small copies of data sets, in the forms in which they are published."""

import io
import json
import pickle
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

RNG = np.random.default_rng(0)


def pictures(count: int, width: int = 32, height: int = 32) -> np.ndarray:
    return RNG.integers(0, 256, (count, height, width, 3), np.uint8)


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_parquet(
    path: Path,
    contents: Sequence[Any],
    labels: Sequence[Any],
    *,
    image: str = "image",
    label: str = "label",
    names: Any = None,
    plain: bool = False,
) -> None:
    """A file as the package datasets writes it; `plain`: a column of bytes instead of structs."""
    rows = list(contents) if plain else [{"bytes": c, "path": "x.png"} for c in contents]
    table = pa.table({image: rows, label: list(labels)})
    if names is not None:
        features = {label: {"names": names, "_type": "ClassLabel"}, image: {"_type": "Image"}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_cifar100(folder: Path) -> tuple[np.ndarray, list[int]]:
    """Returns the pixels of the test images, RGB in the last axis, and their labels."""
    (folder / "cifar-100-python").mkdir()
    x, labels = pictures(4), [0, 99, 50, 1]
    for name in ("train", "test"):
        batch = {
            b"filenames": [b"a.png"] * 4,
            b"batch_label": b"testing batch 1 of 1",
            b"fine_labels": labels,
            b"coarse_labels": [1, 2, 3, 4],
            b"data": x.transpose(0, 3, 1, 2).reshape(4, 3072),
        }
        (folder / "cifar-100-python" / name).write_bytes(pickle.dumps(batch, protocol=2))
    return x, labels


def element(kind: int, content: bytes, order: str = "<") -> bytes:
    """An element of a MATLAB file: small ones have their content in the tag."""
    if len(content) <= 4:
        return struct.pack(order + "I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    padding = b"\0" * (-len(content) % 8)
    return struct.pack(order + "II", kind, len(content)) + content + padding


def matrix(
    name: str, array: np.ndarray, order: str = "<", *, kind: int = 2, array_class: int = 9
) -> bytes:
    """An array of uint8, or of another class and type by their numbers in the format."""
    return element(
        14,
        element(6, struct.pack(order + "II", array_class, 0), order)
        + element(5, struct.pack(f"{order}{array.ndim}i", *array.shape), order)
        + element(1, name.encode(), order)
        + element(kind, array.tobytes("F"), order),
        order,
    )


def compressed(content: bytes, order: str = "<") -> bytes:
    packed = zlib.compress(content)
    return struct.pack(order + "II", 15, len(packed)) + packed


def mat_file(*elements: bytes, order: str = "<") -> bytes:
    text = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124)
    mark = b"IM" if order == "<" else b"MI"
    return text + struct.pack(order + "H", 0x0100) + mark + b"".join(elements)


def write_svhn(folder: Path) -> tuple[np.ndarray, list[int]]:
    """Returns the pixels of the test images and their digits."""
    x, digits = pictures(4), [1, 0, 9, 5]
    y = np.array([[digit or 10] for digit in digits], np.uint8)
    arrays = matrix("X", x.transpose(1, 2, 3, 0)), matrix("y", y)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (folder / name).write_bytes(mat_file(*map(compressed, arrays)))
    return x, digits


def write_tinyimagenet(
    folder: Path, *, classes: int = 3, words: bool = True
) -> tuple[np.ndarray, list[int]]:
    """One training and one test image per class, of which the last is grey. Returns the pixels of
    the test images, in the order of the classes, and their labels."""
    root = folder / "tiny-imagenet-200"
    ids = [f"n{i:08}" for i in range(classes)]
    lines, decoded = [], []
    (root / "val" / "images").mkdir(parents=True)
    for i, (key, pixels) in enumerate(zip(ids, pictures(classes, 64, 64), strict=True)):
        content = encode(pixels if i < classes - 1 else pixels[:, :, 0], "JPEG")
        (root / "train" / key / "images").mkdir(parents=True)
        (root / "train" / key / f"{key}_boxes.txt").write_text("no image\n")
        (root / "train" / key / "images" / f"{key}_0.JPEG").write_bytes(content)
        (root / "val" / "images" / f"val_{i}.JPEG").write_bytes(content)
        lines.append(f"val_{i}.JPEG\t{key}\t0\t32\t44\t62\n")
        decoded.append(np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    (root / "wnids.txt").write_text("\n".join(reversed(ids)))
    if words:
        text = "".join(f"{key}\tword {key[-1]}, other words\n" for key in ids)
        (root / "words.txt").write_text(text + "n99999999\tanother class\n")
    return np.stack(decoded), list(range(classes))
