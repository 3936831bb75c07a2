"""Hostile and odd data files: small ones that claim to be huge, and what is not an image."""

import gzip
import io
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from amata.data import Folder, Framing, Loader, load
from amata.data.layout import find_layout
from amata.data.mnist import FILES
from amata.errors import AmataError, InputError
from tests.test_data import idx, write_folder, write_mnist

CPU = torch.device("cpu")


def png(width: int, height: int) -> bytes:
    """A PNG without pixels: all that a header can claim."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + crc

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    pixels = zlib.compress(b"\0" * min(4 * (width + 1) * height, 1 << 16))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size + b"\x08\0\0\0\0")
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


JPEG = encoded(Image.new("RGB", (30, 20), (200, 100, 50)), "JPEG")
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n%%EOF\n"
BAD_IMAGES = {
    "flat": (png(60_000, 1), r"15360000 x 256 pixels once resized from 60000 x 1, above the limit"),
    "400 megapixels": (png(20_000, 20_000), r"20000 x 20000 pixels, above the limit of 100000000"),
    "195 megapixels": (png(15_000, 13_000), r"15000 x 13000 pixels, above .*AMATA_MAX_PIXELS"),
    "100 megapixels and one": (png(10_000, 10_001), r"10000 x 10001 pixels, above the limit"),
    "beyond any format": (png(2**31 - 1, 2**31 - 1), r"pixels, above the limit"),
    "truncated": (JPEG[:-100], r"is not a readable image \(.*[Tt]runcated"),
    "empty": (b"", r"is not a readable image \(it has 0 bytes\)"),
    "a program for Ghostscript": (EPS, r"not a readable image \(not one of BMP, GIF, "),
    "no pixels": (b"P5\n0 0\n255\n", r"is not a readable image"),
    "32 bits": (encoded(Image.new("F", (20, 20)), "TIFF"), r"not a readable image \(its pixels ha"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in BAD_IMAGES), ("flat", 1), ("truncated", 1)]
)
def test_a_bad_image_is_one_line(tmp_path: Path, name: str, workers: int) -> None:
    content, message = BAD_IMAGES[name]
    write_folder(tmp_path, per_class=1)
    (tmp_path / "train" / "cat" / "0.png").write_bytes(content)
    with pytest.raises(InputError, match=rf"^\S*0\.png [^\n]*{message}"):
        list(Loader(load("folder", root=tmp_path, workers=workers).train, 4, CPU).epoch())


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, parts=("",), per_class=1)
    images = Folder.of(find_layout(tmp_path), "train", Framing(16, 12), 0)
    monkeypatch.setenv("AMATA_MAX_PIXELS", "599")
    with pytest.raises(InputError, match="30 x 20 pixels, above the limit of 599"):
        images.subset(torch.arange(1)).check()
    monkeypatch.setenv("AMATA_MAX_PIXELS", "600")
    images.check()
    for text in ("0", "-1", "1e9", "many", "9" * 5000):
        monkeypatch.setenv("AMATA_MAX_PIXELS", text)
        with pytest.raises(InputError, match=r"^\$AMATA_MAX_PIXELS = .* must be a whole number"):
            load("folder", root=tmp_path)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": lambda path: os.mkfifo(path),
    "link to itself": lambda path: path.symlink_to(path),
    "broken link": lambda path: path.symlink_to("absent.png"),
    "link to a parent": lambda path: path.symlink_to(path.parents[1]),
}


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
def test_what_is_not_a_file_is_named(tmp_path: Path, make: Callable[[Path], object]) -> None:
    write_folder(tmp_path)
    make(tmp_path / "train" / "cat" / "a.png")
    is_odd = r"is (a broken link|a link to a folder|not a regular file)"
    with pytest.raises(InputError, match=rf"cat/a\.png {is_odd}; remove it"):
        load("folder", root=tmp_path)
    make(tmp_path / "train" / "dog" / "b.png")
    with pytest.raises(InputError, match=rf"^2 files of .*a\.png {is_odd}, .*b\.png {is_odd}; rem"):
        load("folder", root=tmp_path)


def test_a_class_that_links_nowhere_and_a_folder_called_png(tmp_path: Path) -> None:
    write_folder(tmp_path, parts=("",))
    (tmp_path / "cat" / "0.png").rename(tmp_path / "image")
    (tmp_path / "cat" / "0.png").mkdir()
    (tmp_path / "image").rename(tmp_path / "cat" / "0.png" / "image.png")
    splits = load("folder", root=tmp_path)
    assert len(splits.train) + len(splits.test) == 6
    (tmp_path / "cow").symlink_to("absent")
    with pytest.raises(InputError, match="cow is a broken link"):
        load("folder", root=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "train" / "cat").chmod(0)
    with pytest.raises(InputError, match=r"train/cat cannot be read \(Permission denied\)"):
        load("folder", root=tmp_path)
    (tmp_path / "train" / "cat").chmod(0o700)


@pytest.mark.parametrize("root", ["absent", "x" * 300, "file", "~nobody-of-this-name/data"])
@pytest.mark.parametrize("name", ["mnist", "cifar10", "folder"])
def test_a_root_that_cannot_be_read(
    tmp_path: Path, amata: Callable[..., Any], name: str, root: str
) -> None:
    (tmp_path / "file").touch()
    where = root if root.startswith("~") else tmp_path / root
    called = amata("data", "check", name, "--root", where)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert root in called.err


def test_a_worker_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path)
    splits = load("folder", root=tmp_path, framing=Framing(16, 12), workers=1)
    monkeypatch.setattr("amata.data.folder.decode", lambda *_: os._exit(1))
    with pytest.raises(AmataError, match=r"^a worker process that decodes images died, [^\n]*$"):
        list(Loader(splits.train, 4, CPU).epoch())


def claim(*shape: int) -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


DIGITS = np.zeros((12, 28, 28), np.uint8)
BAD_IDX = {
    "4 GB of zeros": (0, claim(1 << 20, 64, 64) + bytes(1 << 20), "4294967296 bytes, above the"),
    "absurd": (0, claim(*[2**32 - 1] * 255), "bytes, above the limit"),
    "within the limit": (0, claim(1 << 16, 28, 28), "says 51380240 bytes, the file has 16"),
    "a bomb behind it": (0, idx(DIGITS) + bytes(1 << 22), "says 9424 bytes, the file has more"),
    "cut in the header": (0, claim(12, 28)[:9], r"damaged|match labels"),
    "flat images": (0, idx(np.zeros((12, 784), np.uint8)), r"shape \(12, 784\) do not match"),
    "no pixels": (0, claim(12, 0, 28), r"shape \(12, 0, 28\) do not match"),
    "no images": (0, claim(0, 28, 28), r"do not match"),
    "a scalar as labels": (1, claim() + b"\0", r"labels of shape \(\)"),
    "fewer labels": (1, idx(np.zeros(11, np.uint8)), r"labels of shape \(11,\)"),
    "labels out of range": (1, idx(np.full(12, 10, np.uint8)), r"labels are in \[10, 10\]"),
    "shorts": (1, b"\0\0\x0b\x01\0\0\0\x0c" + bytes(24), "not an IDX file of bytes"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("file", "content", "message"), BAD_IDX.values(), ids=BAD_IDX)
def test_a_bad_idx_file_is_one_line(
    tmp_path: Path, file: int, content: bytes, message: str, zipped: bool
) -> None:
    write_mnist(tmp_path, zipped=zipped)
    path = tmp_path / (FILES[file] + (".gz" if zipped else ""))
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(InputError, match=rf"train-(images|labels)-idx[^\n]*({message})"):
        load("mnist", root=tmp_path)


def table(
    images: list[Any] | None = None, labels: list[Any] | None = None, **columns: Any
) -> pa.Table:
    small = encoded(Image.new("RGB", (32, 32)), "PNG")
    given = [small] * 2 if images is None else images
    rows = [{"bytes": content, "path": "x"} for content in given]
    return pa.table({"img": rows, "label": [0, 1] if labels is None else labels, **columns})


BAD_PARQUET = {
    "an image of 400 megapixels": (table([png(20_000, 20_000)] * 2), "20000 x 20000 .*not 32 x 32"),
    "images of two sizes": (table([JPEG] * 2), "image 0 has 30 x 20 pixels"),
    "not an image": (table([b"x"] * 2), "image 0 is not a readable image"),
    "no image": (table([None] * 2), "image 0 is not a readable image|not a parquet file"),
    "an image of text": (table(["x"] * 2), "not a parquet file of images"),
    "labels of text": (table(labels=["a", "b"]), "labels are not integers"),
    "a missing label": (table(labels=[0, None]), "labels are not integers"),
    "labels out of range": (table(labels=[0, 10]), r"labels are in \[0, 10\]"),
    "no column": (
        table().drop_columns(["label"]),
        "no column label or labels .*; set data.label_col",
    ),
    "no rows": (table().slice(0, 0), "not a parquet file of images"),
}


@pytest.mark.parametrize(("content", "message"), BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_a_bad_parquet_file_is_one_line(tmp_path: Path, content: pa.Table, message: str) -> None:
    for part in ("train", "test"):
        pq.write_table(content, tmp_path / f"{part}-0.parquet")
    with pytest.raises(InputError, match=rf"^[^\n]*train-0\.parquet[^\n]*({message})"):
        load("cifar10", root=tmp_path)


def test_a_small_parquet_file_of_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bytes(100_000)
    for values, most, message in (
        ([one] * 40, 1000, "above the limit of 1000;.*AMATA_MAX_BYTES"),
        ([one] * 40, 1_000_000, "image 0 is not a readable image"),  # a repeated value is held once
        ([one] * 1000, 1_000_000, "holds 3072000 bytes, above the limit"),  # but decoded each time
        ([10 * one], 2_000_000, "it unpacks to more than 20 times its size"),
    ):
        for part in ("train", "test"):
            file = tmp_path / f"{part}-0.parquet"
            pq.write_table(table(values, [0] * len(values)), file, compression="zstd")
        assert file.stat().st_size < 10_000
        monkeypatch.setenv("AMATA_MAX_BYTES", str(most))
        with pytest.raises(InputError, match=message):
            load("cifar10", root=tmp_path)


def test_the_bytes_of_a_parquet_file_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    noise = [
        encoded(Image.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)), "PNG")
        for _ in range(2000)  # eight times as many as are read at once
    ]
    for part in ("train", "test"):
        pq.write_table(table(noise, [0] * len(noise)), tmp_path / f"{part}-0.parquet")
    monkeypatch.setenv("AMATA_MAX_BYTES", "8000000")
    assert len(load("cifar10", root=tmp_path).train) == 2000


def test_a_fifo_called_parquet_is_not_waited_for(tmp_path: Path) -> None:
    for part in ("train", "test"):
        os.mkfifo(tmp_path / f"{part}-0.parquet")
    with pytest.raises(InputError, match=r"train-0\.parquet is not a file"):
        load("cifar10", root=tmp_path)
