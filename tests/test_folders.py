"""Image folders of users: layouts, odd files, `amata data check` and `amata init`."""

import io
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from amata import recipes
from amata.data import Folder, Framing, load
from amata.data.check import Check, Facts
from amata.data.check import Image as CheckedImage
from amata.data.decode import decode
from amata.data.layout import find_layout
from amata.data.listing import Layout
from amata.errors import InputError
from amata.models import build
from amata.schedules import planned_controls
from amata.studies.estimate import estimate, in_words
from amata.studies.suggest import PHOTOS, PREACT, RESNET, SMALL, Network, Suggestion
from tests.test_bombs import png
from tests.test_data import write_folder

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


def write_parts(root: Path, *parts: str, classes: tuple[str, ...] = ("cat", "dog")) -> None:
    for part in parts:
        for name in classes:
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(4):
                pixels = RNG.integers(0, 256, (20, 30, 3), np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")


def write_csv(root: Path, text: str, name: str = "labels.csv") -> None:
    """Eight images in one folder, and a csv."""
    (root / "images").mkdir(parents=True)
    for i in range(8):
        Image.fromarray(RNG.integers(0, 256, (20, 30, 3), np.uint8)).save(root / f"images/{i}.png")
    (root / name).write_text(text)


ROWS = [f"images/{i}.png,{'cat' if i < 4 else 'dog'}" for i in range(8)]
SPLITS = ["train", "train", "Test", "VAL"] * 2
WITH_SPLITS = [f"{row},{split}" for row, split in zip(ROWS, SPLITS, strict=True)]
MORE = [row.replace(",", ",1,") for row in ROWS]
WINDOWS = [row.replace("/", "\\").replace(",", ";") for row in ROWS]
GOOD: dict[str, tuple[Callable[[Path], object], str, dict[str, int]]] = {
    "classes": (lambda r: write_parts(r, ""), "classes", {"train": 8}),
    "classes called train and val": (
        lambda r: write_parts(r, "", classes=("train", "val", "bus")),
        "classes",
        {"train": 12},
    ),
    "train alone": (lambda r: write_parts(r, "train"), "train", {"train": 8}),
    **{
        f"train and {name}": (
            lambda r, name=name: write_parts(r, "Train", name),  # type: ignore[misc]
            "parts",
            {"train": 8, "test": 8},
        )
        for name in ("val", "Valid", "validation", "TEST", "testing")
    },
    "three parts": (
        lambda r: write_parts(r, "train", "Validation", "test"),
        "parts",
        {"train": 8, "valid": 8, "test": 8},
    ),
    "csv": (lambda r: write_csv(r, "\n".join(["file,label", *ROWS])), "csv", {"train": 8}),
    "csv of another name": (
        lambda r: write_csv(r, "\n".join(["Path,x,Class", *MORE]), "a.csv"),
        "csv",
        {"train": 8},
    ),
    "csv with splits": (
        lambda r: write_csv(r, "\ufeff" + "\r\n".join(["image,label,split", *WITH_SPLITS])),
        "csv",
        {"train": 4, "test": 2, "valid": 2},
    ),
    "csv with semicolons and Windows paths": (
        lambda r: write_csv(r, "\n".join(["filename;class", *WINDOWS])),
        "csv",
        {"train": 8},
    ),
}


@pytest.mark.parametrize(("make", "word", "counts"), GOOD.values(), ids=GOOD)
def test_a_layout_is_found(
    tmp_path: Path, make: Callable[[Path], object], word: str, counts: dict[str, int]
) -> None:
    make(tmp_path)
    for rubbish in (".DS_Store", "Thumbs.db", "Desktop.ini"):
        (tmp_path / rubbish).write_bytes(b"x")
    (tmp_path / "__MACOSX" / "cat").mkdir(parents=True)
    layout = find_layout(tmp_path)
    assert (layout.word, layout.problems, layout.bad) == (word, (), ())
    assert {part: len(items) for part, items in layout.parts.items()} == counts
    splits = load("folder", root=tmp_path, framing=Framing(16, 12), test_share=0.5)
    assert splits.train.names == layout.names
    assert set(layout.names) in ({"cat", "dog"}, {"train", "val", "bus"})
    assert len(splits.test) == counts.get("test", counts["train"] // 2)
    if "valid" in counts:
        assert splits.valid is not None
        record = splits.record()
        assert len(splits.valid) == record["valid"] == counts["valid"]
        assert not set(record["valid_ids"]) & set(splits.train.ids.tolist())
        assert {"valid_hash", "valid_pixels"} <= record.keys()
        with pytest.raises(InputError, match=r"data\.valid = 1, but .* has its own validation"):
            load("folder", root=tmp_path, valid=1)


def test_a_csv_may_be_the_root_and_numbers_are_in_order(tmp_path: Path) -> None:
    rows = [f"images/{i}.png,{label}" for i, label in enumerate((10, 9, 2, 10, 9, 2, 9, 10))]
    write_csv(tmp_path, "\n".join(["file,label", *rows]), "mine.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2")
    splits = load("folder", root=tmp_path / "mine.csv", framing=Framing(16, 12), test_share=0.5)
    assert splits.train.names == ("2", "9", "10")
    assert isinstance(splits.train, Folder)
    for file, label in zip(splits.train.files, splits.train.labels.tolist(), strict=True):
        assert f"images/{file.name},{splits.train.names[label]}" in rows


def with_empty(root: Path) -> None:
    write_parts(root, "train", "val")
    for part in ("train", "val"):
        (root / part / "cow").mkdir()


def with_others(root: Path) -> None:
    write_parts(root, "train")
    write_parts(root, "val", classes=("cat", "cow"))


def nested(root: Path) -> None:
    write_parts(root, "photos")


def linked(part: str, target: str) -> Callable[[Path], None]:
    """A class x that is a link."""

    def make(root: Path) -> None:
        write_parts(root, part)
        (root / part / "x").symlink_to(target)

    return make


def odd_csv(*rows: str, header: str = "file,label") -> Callable[[Path], None]:
    return lambda root: write_csv(root, "\n".join([header, *ROWS, *rows]))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "unknown part": (
        lambda r: write_parts(r, "train", "holdout"),
        r"'holdout/' beside train in .*: unknown part name; accepted are train, val \(or valid, ",
    ),
    "unknown part beside known ones": (
        lambda r: write_parts(r, "train", "test", "dev", "extra"),
        r"'dev/', 'extra/' beside train .*: unknown part names; ",
    ),
    "two validation parts": (
        lambda r: write_parts(r, "train", "val", "valid"),
        r"two folders for one part, val/ and valid/; keep one",
    ),
    "no train": (lambda r: write_parts(r, "val", "test"), r"has test/ but no train/"),
    "flat": (
        lambda r: write_parts(r, "", classes=("",)),
        r"images but no class folders",
    ),
    "flat parts": (
        lambda r: write_parts(r, "", classes=("train", "test")),
        r"has test/ and train/ without class folders",
    ),
    "one class": (lambda r: write_parts(r, "", classes=("cat",)), r"one class only, 'cat'; a cla"),
    "one level too high": (nested, r"one class only, 'photos'; set data.root to .*photos"),
    "empty classes": (with_empty, r"no image in train/cow, val/cow; add images, or remove"),
    "different classes": (
        with_others,
        r"different classes; 'dog' is only in train/, 'cow' is only in val/",
    ),
    "a class that links to all": (
        linked("", "."),
        r"no image in root/x; add images, or remove the class",
    ),
    "a class that links to another": (
        linked("train", "cat"),
        r"no image in train/x; add images, or remove the class",
    ),
    "nothing": (lambda r: None, r"no image below"),
    "parquet": (
        lambda r: (r / "train.parquet").write_bytes(b""),
        r"no image below .*; it has parquet files: set data.name=parquet",
    ),
    "csv: unknown split": (
        lambda r: write_csv(r, "\n".join(["file,label,split", *WITH_SPLITS, "a.png,cat,foo"])),
        r"'foo' beside train in .*labels\.csv: unknown part name; accepted",
    ),
    "csv: outside": (odd_csv("../secret.png,cat"), r"secret\.png is outside the folder of the csv"),
    "csv: absolute": (odd_csv("/etc/passwd,cat"), r"/etc/passwd is outside the folder of the csv"),
    "csv: absent": (odd_csv("images/9.png,cat"), r"images/9\.png does not exist"),
    "csv: null byte": (odd_csv("images/\0.png,cat"), r"is not a path|not a csv"),
    "csv: no label": (odd_csv("images/7.png"), r"labels\.csv: no label in row 10"),
    "csv: twice": (odd_csv("images/7.png,cat"), r"names 1 files more than once, such as images/7"),
    "csv: no column": (odd_csv(header="file,kind"), r"no column label or class in its first row"),
    "csv: empty": (lambda r: (r / "labels.csv").write_text(""), r"labels\.csv is empty"),
    "csv: twice in other words": (
        odd_csv("./x/../images/7.png,cat"),
        r"names 1 files more than once, such as images/7",
    ),
    "csv: a pipe": (lambda r: os.mkfifo(r / "labels.csv"), r"labels\.csv is not a regular file"),
    "csv: a device": (
        lambda r: (r / "labels.csv").symlink_to("/dev/zero"),
        r"labels\.csv is not a regular file",
    ),
    "csv: not text": (lambda r: (r / "labels.csv").write_bytes(b"\xff\0,"), r"not a csv in UTF-8"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_layout_is_one_line(
    tmp_path: Path, amata: Callable[..., Any], make: Callable[[Path], object], message: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    make(root)
    with pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$"):
        load("folder", root=root)
    called = amata("data", "check", root)
    assert (called.code, called.err.count("\n")) == (2, 1)


def test_a_link_of_a_csv_stays_inside(tmp_path: Path) -> None:
    write_csv(tmp_path / "root", "\n".join(["file,label", *ROWS]))
    (tmp_path / "root" / "images").rename(tmp_path / "elsewhere")
    (tmp_path / "root" / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"8 files cannot be used, .* is outside the folder of "):
        load("folder", root=tmp_path / "root")


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png16(pixels: np.ndarray) -> bytes:
    """An RGB PNG of 16 bits per channel, which Pillow cannot write."""
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + crc

    height, width, _ = pixels.shape
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size + b"\x10\x02\0\0\0")
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


GREY16 = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
RGB16 = RNG.integers(0, 65536, (20, 20, 3)).astype(np.uint16)
PIXELS = RNG.integers(0, 256, (20, 20, 3), np.uint8)
RGB = Image.fromarray(PIXELS)
GREY = RGB.convert("L")
ALPHA = RNG.integers(0, 256, (20, 20), np.uint8)
PALETTE = RGB.quantize(16)
HALF = np.where(np.asarray(PALETTE) == 0, 0, 255)


def on_white(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """alpha x + (1 - alpha) 255."""
    a = alpha[..., None] / 255
    return a * pixels + (1 - a) * 255


def repeated(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, axis=2)


ODD_IMAGES: dict[str, tuple[bytes, np.ndarray]] = {
    "I;16 PNG": (encoded(Image.fromarray(GREY16), "PNG"), repeated(GREY16 >> 8)),
    "I;16 TIFF": (encoded(Image.fromarray(GREY16), "TIFF"), repeated(GREY16 >> 8)),
    "I;16B TIFF": (encoded(Image.fromarray(GREY16.astype(">u2")), "TIFF"), repeated(GREY16 >> 8)),
    "I PGM": (b"P5 20 20 65535\n" + GREY16.astype(">u2").tobytes(), repeated(GREY16 >> 8)),
    "8 bits as 16": (
        encoded(Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257), "PNG"),
        repeated(np.asarray(GREY)),
    ),
    "16-bit RGB PNG": (png16(RGB16), RGB16 >> 8),
    "RGBA": (
        encoded(Image.fromarray(np.dstack([PIXELS, ALPHA])), "PNG"),
        on_white(PIXELS, ALPHA),
    ),
    "LA": (
        encoded(Image.merge("LA", [GREY, Image.fromarray(ALPHA)]), "PNG"),
        on_white(repeated(np.asarray(GREY)), ALPHA),
    ),
    "palette": (encoded(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "palette with a transparent colour": (
        encoded(PALETTE, "PNG", transparency=0),
        on_white(np.asarray(PALETTE.convert("RGB")), HALF),
    ),
    "palette with alpha": (
        encoded(PALETTE, "PNG", transparency=bytes([0] + [255] * 15)),
        on_white(np.asarray(PALETTE.convert("RGB")), HALF),
    ),
    "animation": (
        encoded(PALETTE, "GIF", save_all=True, append_images=[Image.new("P", (20, 20))]),
        np.asarray(PALETTE.convert("RGB")),
    ),
    "1 bit": (
        encoded(GREY.convert("1"), "PNG"),
        repeated(np.asarray(GREY.convert("1")) * 255),
    ),
    "CMYK": (encoded(RGB.convert("CMYK"), "TIFF"), PIXELS),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("content", "pixels"), ODD_IMAGES.values(), ids=ODD_IMAGES)
def test_an_odd_image_is_decoded_right(content: bytes, pixels: np.ndarray) -> None:
    image = decode(io.BytesIO(content), "image", lambda w, h: None)
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(float) - pixels).max() <= 0.51


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_the_orientation_of_a_camera_is_applied(kind: str, orientation: int) -> None:
    """Stored is what the sensor saw: turned, it is upright again."""
    upright = np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3)
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[::-1],
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    }
    stored = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    content = encoded(stored, kind, exif=exif, **options)
    image = decode(io.BytesIO(content), "image", lambda w, h: None)
    assert np.array_equal(np.asarray(image), upright)


def test_damaged_exif_data_are_ignored() -> None:
    content = encoded(RGB, "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    assert np.array_equal(np.asarray(decode(io.BytesIO(content), "x", lambda w, h: None)), PIXELS)


def write_bad(root: Path) -> None:
    """Three good and some bad files of each kind, in two classes."""
    write_folder(root, parts=("",), per_class=6)
    cat, dog = root / "cat", root / "dog"
    for name in ("Thumbs.db", "desktop.ini", ".hidden.png", "._0.png"):
        (cat / name).write_bytes(b"x")
    (cat / ".ipynb_checkpoints").mkdir()
    shutil.copy(cat / "0.png", cat / ".ipynb_checkpoints")
    (cat / "a-zero.png").touch()
    (cat / "b-text.png").write_text("hello")
    (cat / "c-half.png").write_bytes((cat / "0.png").read_bytes()[:700])
    (dog / "d-huge.png").write_bytes(png(20_000, 20_000))
    (dog / "e-\x1b[2Jnotes.txt").write_text("hello")
    (dog / "f-gone.png").symlink_to("absent")


def test_bad_files_are_one_line_with_a_count(tmp_path: Path) -> None:
    write_bad(tmp_path)
    with pytest.raises(
        InputError,
        match=r"^5 files of [^\n]* cannot be used: cat/a-zero\.png is not a readable image \(it "
        r"has 0 bytes\), cat/b-text\.png is not [^\n]*, dog/d-huge\.png has 20000 x 20000 pixels"
        r"[^\n]*, and 2 more; remove them \(`amata data check [^\n]*data\.skip_bad = true[^\n]*$",
    ):
        load("folder", root=tmp_path)


def test_skipping_bad_files_keeps_the_ids_and_places_of_the_others(tmp_path: Path) -> None:
    write_folder(tmp_path, parts=("",), per_class=6)
    framing = Framing(16, 12)
    before = load("folder", root=tmp_path, framing=framing, test_share=0.5)
    assert isinstance(before.train, Folder)
    dropped, spare = before.train.files[1], before.train.ids[1]
    whole = dropped.read_bytes()
    dropped.write_bytes(whole[:700])
    after = load("folder", root=tmp_path, framing=framing, test_share=0.5, skip_bad=True)
    assert isinstance(after.train, Folder)
    assert after.skipped == after.record()["skipped"] == 1
    assert set(before.train.ids.tolist()) - set(after.train.ids.tolist()) == {int(spare)}
    assert after.test.ids.tolist() == before.test.ids.tolist()
    assert dict(zip(after.train.files, after.train.ids.tolist(), strict=True)).items() <= (
        dict(zip(before.train.files, before.train.ids.tolist(), strict=True)).items()
    )
    assert after.hashes["train_hash"] != before.hashes["train_hash"]
    assert after.hashes["test_hash"] == before.hashes["test_hash"]
    for file in (tmp_path / "cat").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(InputError, match="no image of 'cat' is left in"):
        load("folder", root=tmp_path, test_share=0.5, skip_bad=True)


def test_check_lists_every_bad_file(tmp_path: Path, amata: Callable[..., Any]) -> None:
    write_bad(tmp_path)
    shutil.copy(tmp_path / "cat" / "0.png", tmp_path / "cat" / "copy.png")
    shutil.copy(tmp_path / "cat" / "0.png", tmp_path / "dog" / "copy.png")
    called = amata("data", "check", tmp_path)
    assert called.code == 2
    assert called.err.startswith(f"error: {tmp_path} cannot be trained on: 6 files cannot be used")
    names = ("a-zero", "b-text", "c-half", "d-huge", r"e-\x1b[2Jnotes", "f-gone")
    for name in names:
        assert name in called.out
    assert "\x1b" not in called.out
    assert not any(name in called.out for name in ("Thumbs", "desktop", "hidden", "._0"))
    lines = called.out.splitlines()
    assert lines.pop(0) == f"folder  {tmp_path}"
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80
    assert "in more than one class: cat/0.png = dog/copy.png" in called.out
    skipped = amata("data", "check", tmp_path, "--skip-bad", "--json")
    assert skipped.code == 0
    found = json.loads(skipped.out)
    assert found["layout"] == "classes"
    assert len(found["bad"]) == 6
    assert {name: sum(parts.values()) for name, parts in found["classes"].items()} == {
        "cat": 7,
        "dog": 7,
    }
    assert found["sizes"] == {"min": [30, 20], "median": [30, 20], "max": [30, 20]}
    assert found["copies"] == [["cat/0.png", "cat/copy.png", "dog/copy.png"]]
    assert amata("data", "check", "folder", "--root", tmp_path, "--skip-bad").code == 0


def test_check_tells_classes_without_test_images(tmp_path: Path, amata: Callable[..., Any]) -> None:
    write_folder(tmp_path, parts=("",), per_class=10)
    for i in range(1, 10):
        (tmp_path / "dog" / f"{i}.png").unlink()
    text = " ".join(amata("data", "check", tmp_path).out.split())
    assert "no test image of 'dog': nothing will be known of it; add images" in text
    assert "dog 1 0" in text
    # with one class alone there is a problem, and no test set
    shutil.rmtree(tmp_path / "dog")
    assert "no test image" not in amata("data", "check", tmp_path).out


def test_check_tells_leaks_and_unbalanced_classes(
    tmp_path: Path, amata: Callable[..., Any]
) -> None:
    write_parts(tmp_path, "train", "test")
    shutil.copy(tmp_path / "train" / "cat" / "0.png", tmp_path / "test" / "cat" / "9.png")
    for i in (0, 1, 2):
        (tmp_path / "train" / "dog" / f"{i}.png").unlink()
    (tmp_path / "train" / "dog" / "phone.HEIC").touch()
    called = amata("data", "check", tmp_path, "--skip-bad")
    assert called.code == 0
    assert "phone.HEIC is of a format that is not read (.HEIC): convert it to JPEG" in called.out
    text = " ".join(called.out.split())
    assert "1 training image is also in another part, which flatters results: " in text
    assert "train/cat/0.png = test/cat/9.png" in text
    assert (
        "classes are unbalanced: 4 training images of 'cat', 1 of 'dog'; set optim.class_" in text
    )
    assert "dog 1 4" in text
    assert "cat 4 5" in text


def test_check_counts_in_workers_as_without(tmp_path: Path) -> None:
    from amata.data.check import check_folder

    write_bad(tmp_path)
    alone, together = (check_folder(tmp_path, workers=n) for n in (0, 2))
    assert alone.to_dict() == together.to_dict()


def suggestion(side: int, images: int, device: str, gib: int = 0, valid: int = 0) -> Suggestion:
    """For images of side x 2 side pixels, in two classes."""
    layout = Layout(Path("/x"), "parts", "", ("cat", "dog"), {})
    facts = Facts(2 * side, side, "RGB")
    counts = {"train": images, "valid": valid, "test": 5}
    found = [
        CheckedImage(Path(f"{part}{i}"), part, i % 2, facts)
        for part, count in counts.items()
        for i in range(count)
    ]
    check = Check(layout=layout, images=tuple(found), bad=(), problems=())
    return Suggestion(check, torch.device(device), gib << 30)


@pytest.mark.parametrize(
    ("images", "crop", "network", "batch", "eps"),
    [
        (suggestion(28, 4000, "cpu"), 32, SMALL, 32, "8/255"),
        (suggestion(28, 40, "cpu"), 32, SMALL, 16, "8/255"),
        (suggestion(28, 6, "cpu"), 32, SMALL, 2, "8/255"),
        (suggestion(32, 9000, "cuda", 24), 32, PREACT, 512, "8/255"),
        (suggestion(70, 9000, "cuda", 24), 64, PREACT, 256, "8/255"),
        (suggestion(100, 9000, "cuda", 24), 96, RESNET, 128, "8/255"),
        (suggestion(120, 90, "cuda", 24), 128, SMALL, 16, "8/255"),
        (suggestion(161, 9000, "cuda", 24), 224, PHOTOS, 128, "4/255"),
        (suggestion(2000, 9000, "cpu"), 224, PHOTOS, 32, "4/255"),
    ],
)
def test_a_suggestion_fits_images_and_device(
    images: Suggestion, crop: int, network: Network, batch: int, eps: str
) -> None:
    assert (images.crop, images.network, images.batch, images.eps) == (crop, network, batch, eps)
    root = '/a "b"\n[c]/d\\\x1b\n[data]'
    recipe = recipes.parse(tomllib.loads(images.to_toml(Path(root))), "mine")
    assert (recipe.data.root, recipe.data.crop) == (root, crop)
    assert recipe.train.epochs > recipe.optim.milestones[0] > recipe.optim.warmup
    assert [u.steps for u in planned_controls(recipe.schedule, 10) or []][::9] == [1, 3]
    assert recipe.data.valid == (0 if images.images < 20 else images.images // 10)


@pytest.mark.parametrize("network", [SMALL, PREACT, RESNET, PHOTOS], ids=lambda n: n.about)
def test_a_batch_is_chosen_for_twice_what_the_forward_pass_keeps(network: Network) -> None:
    args = tomllib.loads(f"args = {network.args or '{}'}")["args"]
    model = build(network.name, in_channels=3, classes=2, args=args).train()
    kept: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.shape[:1] == (2,):  # not the weights
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(torch.rand(2, 3, 32, 32, requires_grad=True))
    assert 2 <= network.per_pixel * 2 * 32**2 / sum(kept.values()) <= 3


def test_a_validation_part_needs_no_share() -> None:
    assert suggestion(28, 400, "cpu", valid=9).valid == 0
    assert suggestion(28, 40_000, "cpu").valid == 1000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.1, "about 1 second"),
        (99, "about 99 seconds"),
        (720, "about 12 minutes"),
        (9000, "about 2 hours"),
        (1e6, "about 12 days"),
    ],
)
def test_a_time_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


TINY = (
    "model.name=tests.conftest:flat_net",
    "model.args={side=32}",
    "train.epochs=4",
    "optim.milestones=[]",
)


def test_an_estimate_counts_every_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one second per gradient evaluation and none for reading."""
    write_parts(tmp_path, "train", "val", "test")
    text = suggestion(28, 8, "cpu", valid=8).to_toml(tmp_path)
    recipe = recipes.parse(tomllib.loads(text), "mine", TINY)
    monkeypatch.setattr("amata.studies.estimate._time_batches", lambda trainer: (1.0, 0.0))
    steps = [u.steps for u in planned_controls(recipe.schedule, 4) or []]
    training = 8 * sum(k + 1 for k in steps)
    assert estimate(recipe) == training + 4 * 8 * 11 + 8 * (1 + 21)
    restarts = replace(recipe, eval=recipe.eval.model_copy(update={"attacks": ["pgd-5-3"]}))
    assert estimate(restarts) == training + 4 * 8 * 11 + 8 * 16


def test_a_walk_with_odd_files(
    tmp_path: Path, amata: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("amata.studies.estimate.SECONDS", 0.0)
    write_bad(tmp_path / "my photos")
    (tmp_path / "my photos" / "dog" / "grey.png").write_bytes(ODD_IMAGES["I;16 PNG"][0])
    refused = amata("init", "my photos")
    assert refused.code == 2
    assert "6 files cannot be used: remove them, or pass --skip-bad" in refused.err
    assert not Path("my-photos.toml").exists()
    made = amata("init", "my photos", "--skip-bad")
    assert made.code == 0, made.err
    assert re.search(r"time +about \d+ \w+ for (30|50) epochs on \w+", made.out)
    assert "amata train my-photos.toml\n" in made.out
    written = Path("my-photos.toml").read_text()
    assert f'root = "{tmp_path / "my photos"}"' in written
    assert "skip_bad = true" in written
    again = amata("init", "my photos", "--skip-bad")
    assert again.err == (
        "error: my-photos.toml exists already: train with it (amata train my-photos.toml), or "
        "choose another --out\n"
    )
    assert (again.code, Path("my-photos.toml").read_text()) == (2, written)
    assert amata("data", "check", "my photos", "--skip-bad").code == 0
    overrides = [f"--set={each}" for each in (*TINY, "train.epochs=1", "train.device=cpu")]
    trained = amata("train", "my-photos.toml", *overrides)
    assert trained.code == 0, trained.err
    assert "note: data.skip_bad: leaving out 6 files that cannot be used" in trained.err
    split = json.loads(Path("runs/my-photos/split.json").read_text())
    assert (split["skipped"], split["classes"]) == (6, ["cat", "dog"])
    assert amata("init", "my photos", "--out", "a.txt").err == (
        "error: --out a.txt must end with .toml\n"
    )


def test_a_run_on_a_csv_is_evaluated_without_naming_it_again(
    tmp_path: Path, amata: Callable[..., Any]
) -> None:
    write_csv(tmp_path / "root", "\n".join(["file,label,split", *WITH_SPLITS]), "mine.csv")
    text = suggestion(28, 4, "cpu", valid=2).to_toml(tmp_path / "root" / "mine.csv")
    (tmp_path / "mine.toml").write_text(text)
    overrides = [f"--set={each}" for each in (*TINY, "train.epochs=1", "train.device=cpu")]
    run = tmp_path / "run"
    assert amata("train", tmp_path / "mine.toml", *overrides, "--out", run).code == 0
    called = amata("eval", run, "--attacks", "clean")
    assert called.code == 0, called.err
    assert f"reading data from {tmp_path / 'root' / 'mine.csv'} (data.root in" in called.err
    (tmp_path / "root" / "mine.csv").unlink()
    (tmp_path / "root" / "mine.csv").mkdir()
    assert "is not a folder" in amata("eval", run).err


def test_a_folder_that_is_not_utf8_is_one_line(
    tmp_path: Path, amata: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe is text: it cannot name such a folder. Nothing is left behind."""
    root = tmp_path / os.fsdecode(b"photos\xff")
    write_parts(root, "")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    called = amata("init", root)
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "the path of the folder is not UTF-8" in called.err
    (tmp_path / "mine.toml").write_text(suggestion(28, 4, "cpu", valid=2).to_toml(tmp_path))
    called = amata("train", tmp_path / "mine.toml", "--set", f"data.root={root}", "--out", "run")
    assert called.code == 2
    assert "is not UTF-8; rename" in called.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_check_of_a_folder_fits(
    width: int, tmp_path: Path, amata: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amata.cli.check.out._width", width)
    monkeypatch.setattr("amata.cli.check.out.windowed", True)
    write_parts(tmp_path, ".", classes=("cat", "a class with a long name, " * 3, "dog"))
    (tmp_path / "cat" / "broken.png").write_bytes(b"no image")
    lines = amata("data", "check", tmp_path).out.splitlines()
    shown = [line for line in lines if not line.startswith("folder ")]
    assert max(map(len, shown)) <= width
    assert "sizes   all 30 x 20" in shown
    head = next(line for line in shown if line.startswith("class"))
    assert head.split() == ["class", "train", "test"]
