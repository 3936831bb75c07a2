"""Data: files are read back exactly, draws are functions of their keys, broken files are named."""

import gzip
import hashlib
import itertools
import json
import pickle
import re
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from amata.data import DATASETS, Arrays, Feed, Folder, Framing, Loader, Stream, load
from amata.data.augment import crop_flip, cutout
from amata.data.cifar import load_cifar10
from amata.data.convert import scaled
from amata.data.folder import load_folder
from amata.data.hold_out import held_out
from amata.data.images import split_validation
from amata.data.layout import find_layout
from amata.data.mnist import FILES
from amata.errors import InputError
from amata.recipes import load as load_recipe
from amata.seeds import generator
from amata.studies import bench_data
from amata.training.setup import load_data
from tests.conftest import images, labels
from tests.published import write_cifar100, write_svhn, write_tinyimagenet

CPU = torch.device("cpu")


def idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        + array.tobytes()
    )


def write_mnist(
    folder: Path, *, zipped: bool = True, count: int = 12, dot: str = "-"
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = (
        rng.integers(0, 256, (count, 28, 28), np.uint8),
        rng.integers(0, 10, count).astype(np.uint8),
    )
    for name in FILES:
        content = idx(x if "images" in name else y)
        file = name.replace("-idx", f"{dot}idx") + (".gz" if zipped else "")
        (folder / file).write_bytes(gzip.compress(content) if zipped else content)
    return x, y


@pytest.mark.parametrize(("zipped", "dot"), [(True, "-"), (False, "-"), (True, ".")])
def test_mnist_files_are_read(tmp_path: Path, zipped: bool, dot: str) -> None:
    x, y = write_mnist(tmp_path, zipped=zipped, dot=dot)
    splits = load("mnist", root=tmp_path)
    batch = next(Loader(splits.train, 12, CPU).epoch())
    torch.testing.assert_close(batch.x, torch.from_numpy(x[:, None]).float() / 255)
    assert batch.y.tolist() == y.tolist()


def test_broken_mnist_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no train-images-idx3-ubyte\.gz in .*amata data fetch mnist"
    ):
        load("mnist", root=tmp_path)
    write_mnist(tmp_path)
    file = tmp_path / (FILES[0] + ".gz")
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    with pytest.raises(InputError, match=r"train-images.*truncated or damaged"):
        load("mnist", root=tmp_path)
    file.write_bytes(gzip.compress(gzip.decompress(whole)[:-30]))
    with pytest.raises(InputError, match="header says 9424 bytes, the file has 9394"):
        load("mnist", root=tmp_path)
    file.write_bytes(gzip.compress(b"GIF89a"))
    with pytest.raises(InputError, match="not an IDX file"):
        load("mnist", root=tmp_path)
    file.write_bytes(whole)
    labels_file = tmp_path / (FILES[1] + ".gz")
    labels_file.write_bytes(gzip.compress(idx(np.full(12, 11, np.uint8))))
    with pytest.raises(InputError, match=r"labels are in \[11, 11\], outside the 10 classes"):
        load("mnist", root=tmp_path)


def test_mnist5k_is_fixed_and_balanced() -> None:
    splits = load("mnist5k", valid=200, seed=0)
    again = load("mnist5k", valid=200, seed=0)
    assert (len(splits.train), len(splits.test), len(splits.held_out)) == (3800, 1000, 200)
    assert splits.held_out == again.held_out
    assert splits.held_out != load("mnist5k", valid=200, seed=1).held_out
    assert isinstance(splits.test, Arrays)
    assert torch.bincount(splits.test.y).tolist() == [100] * 10
    assert int(torch.bincount(splits.test.y[:100]).min()) >= 3, (
        "the first hundred should be a fair sample"
    )
    pixels = hashlib.sha256(splits.test.x.numpy().tobytes()).hexdigest()
    assert pixels.startswith("8a7881ec21abc9a7"), "other digits than those of published results"
    assert torch.equal(splits.test.x, again.test.x)  # type: ignore[attr-defined]
    assert not set(splits.held_out) & set(splits.train.ids.tolist())


def write_cifar_batches(folder: Path) -> np.ndarray:
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)
    for name in (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ):
        (folder / name).write_bytes(pickle.dumps({b"data": x, b"labels": [0, 1, 2, 9]}, protocol=2))
    return x


def test_cifar10_batches_are_read_without_running_pickles(tmp_path: Path) -> None:
    x = write_cifar_batches(tmp_path / "cifar-10-batches-py")
    train, test = load_cifar10(tmp_path)
    assert len(train) == 20
    assert torch.equal(test.x, torch.from_numpy(x.reshape(4, 3, 32, 32)))
    evil = tmp_path / "cifar-10-batches-py" / "test_batch"
    evil.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    with pytest.raises(
        InputError,
        match=r"test_batch is truncated or not a CIFAR-10 batch \(it imports os\.system\)",
    ):
        load_cifar10(tmp_path)
    assert not (tmp_path / "owned").exists()
    evil.write_bytes(b"\x80\x02}")
    with pytest.raises(InputError, match="test_batch is truncated"):
        load_cifar10(tmp_path)
    evil.unlink()
    with pytest.raises(InputError, match="amata data fetch cifar10"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("column", ["img", "image"])
def test_cifar10_parquet_is_read(tmp_path: Path, column: str) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)

    def png(pixels: np.ndarray) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    table = pa.table({column: [{"bytes": png(p), "path": "x"} for p in x], "label": [3, 1, 2]})
    for part in ("train", "test"):
        pq.write_table(table, tmp_path / f"{part}-00000-of-00001.parquet")
    train, _ = load_cifar10(tmp_path)
    assert torch.equal(train.x, torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    assert train.y.tolist() == [3, 1, 2]
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match="not a parquet file of images"):
        load_cifar10(tmp_path)


# Data set -> what writes a small copy into a folder; None where a package brings the data.
COPIES: dict[str, Callable[[Path], object] | None] = {
    "mnist5k": None,
    "mnist": write_mnist,
    "cifar10": lambda folder: write_cifar_batches(folder / "cifar-10-batches-py"),
    "cifar100": write_cifar100,
    "svhn": write_svhn,
    "tinyimagenet": partial(write_tinyimagenet, classes=200),
}


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.loader])
def test_an_entry_describes_what_its_loader_reads(tmp_path: Path, name: str) -> None:
    entry, write = DATASETS[name], COPIES[name]
    (tmp_path / name).mkdir()
    if write:
        write(tmp_path / name)
    splits = load(name, root=tmp_path)
    for part in (splits.train, splits.test):
        assert next(Loader(part, 2, CPU).epoch()).x.shape[1:] == entry.shape
        assert (part.shape, part.classes, len(part.names)) == (
            entry.shape,
            entry.classes,
            entry.classes,
        )
    assert f"{entry.images:,} train" in entry.about
    assert write or len(splits.train) == entry.images


def test_sources_are_secure_and_have_checksums() -> None:
    digits = {"md5": 32, "sha1": 40}
    remotes = [remote for entry in DATASETS.values() for remote in entry.source]
    assert len(remotes) == 12
    for remote in remotes:
        algorithm, _, digest = remote.checksum.partition(":")
        assert re.fullmatch(rf"[0-9a-f]{{{digits[algorithm]}}}", digest)
        assert remote.url.startswith("https://")


def test_data_sets_that_are_image_folders_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="data caltech256 is read as an image folder"):
        load("caltech256", root=tmp_path)


def write_folder(root: Path, parts: tuple[str, ...] = ("train", "val"), per_class: int = 3) -> None:
    rng = np.random.default_rng(0)
    for part in parts:
        for name in ("cat", "dog"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(
                    folder / f"{i}.png"
                )


@pytest.mark.parametrize("workers", [0, 2])
def test_folders_are_decoded_the_same_in_any_number_of_workers(
    tmp_path: Path, workers: int
) -> None:
    write_folder(tmp_path)
    splits = load("folder", root=tmp_path, framing=Framing(16, 12), workers=workers)
    assert (splits.train.classes, len(splits.train), len(splits.test)) == (2, 6, 6)
    first = list(Loader(splits.train, 4, CPU, seed=1, flip=True).epoch(0))
    assert [tuple(b.x.shape) for b in first] == [(4, 3, 12, 12), (2, 3, 12, 12)]
    plain = load("folder", root=tmp_path, framing=Framing(16, 12), workers=0)
    for a, b in zip(first, Loader(plain.train, 4, CPU, seed=1, flip=True).epoch(0), strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    resumed = list(Loader(splits.train, 4, CPU, seed=1, flip=True).epoch(0, start=1))
    assert torch.equal(resumed[0].x, first[1].x)
    other = next(Loader(splits.train, 6, CPU, seed=1).epoch(1))
    assert not torch.equal(
        other.x[other.ids.argsort()],
        torch.cat([b.x for b in first])[torch.cat([b.ids for b in first]).argsort()],
    )


def test_a_central_crop_is_what_pillow_gives(tmp_path: Path) -> None:
    write_folder(tmp_path)
    test = load("folder", root=tmp_path, framing=Framing(16, 12), workers=0).test
    batch = next(Loader(test, 6, CPU).epoch())
    position = int((batch.ids == 0).nonzero())
    image = Image.open(tmp_path / "val" / "cat" / "0.png").resize((24, 16)).crop((6, 2, 18, 14))
    torch.testing.assert_close(
        batch.x[position],
        torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy()).float() / 255,
    )


def test_training_crops_take_every_window() -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    framing, rng = Framing(4, 3), np.random.default_rng(0)
    seen = {framing.apply(Image.fromarray(pixels), rng).tobytes() for _ in range(100)}
    windows = [pixels[top : top + 3, left : left + 3] for top in range(2) for left in range(3)]
    assert seen == {window.tobytes() for window in windows}


def test_random_resized_crops_have_imagenets_areas_and_aspects() -> None:
    rng = np.random.default_rng(0)
    boxes = np.array([Framing._random_box(300, 200, rng) for _ in range(1000)])
    left, top, right, bottom = boxes.T
    assert min(left.min(), top.min()) >= 0
    assert right.max() <= 300
    assert bottom.max() <= 200
    area, aspect = (right - left) * (bottom - top) / 60_000, (right - left) / (bottom - top)
    for values, low, high in ((area, 0.08, 0.85), (aspect, 3 / 4, 4 / 3)):
        assert low <= values.min() < 1.1 * low
        assert 0.95 * high < values.max() <= high * 1.1
    assert Framing._random_box(1000, 10, rng) == (495, 0, 505, 10)  # no such window fits


@pytest.mark.parametrize("part", ["val", "valid", "test"])
def test_test_images_are_found_and_their_first_ones_are_a_fair_sample(
    tmp_path: Path, part: str
) -> None:
    write_folder(tmp_path / "parts", ("train", part), per_class=8)
    write_folder(tmp_path / "whole", ("",), per_class=8)
    for root, count in (("parts", 16), ("whole", 8)):
        test = load("folder", root=tmp_path / root, framing=Framing(16, 12), test_share=0.5).test
        assert isinstance(test, Folder)
        assert test.names == ("cat", "dog")
        assert len(test) == count
        assert test.labels.tolist() != sorted(test.labels.tolist())


def test_hashes_tell_a_changed_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    before = load("folder", root=tmp_path).hashes
    assert load("folder", root=tmp_path).hashes == before
    for part in ("train", "val"):
        (tmp_path / part / "cat").rename(tmp_path / part / "cow")
    renamed = load("folder", root=tmp_path).hashes
    (tmp_path / "val" / "cow" / "0.png").rename(tmp_path / "val" / "cow" / "9.png")
    moved = load("folder", root=tmp_path).hashes
    assert before["train_hash"] != renamed["train_hash"] == moved["train_hash"]
    assert len({hashes["test_hash"] for hashes in (before, renamed, moved)}) == 3


@pytest.mark.parametrize("name", ["mnist", "folder"])
def test_hashes_tell_changed_pixels(tmp_path: Path, name: str) -> None:
    """The labels are the same, and so are the names and the sizes of the files."""
    if name == "mnist":
        write_mnist(tmp_path, zipped=False)
    else:
        write_folder(tmp_path)
    file = tmp_path / FILES[2] if name == "mnist" else tmp_path / "val" / "cat" / "0.png"
    before, content = load(name, root=tmp_path).hashes, bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    after = load(name, root=tmp_path).hashes
    assert {key for key in before if before[key] != after[key]} == {"test_pixels"}


def test_the_hash_of_a_large_folder_reads_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amata.data.folder.SAMPLED", 5)
    write_folder(tmp_path, parts=("",), per_class=4)
    whole = Folder.of(find_layout(tmp_path), "train", Framing(), 0)
    before, seen = whole.sha256(), 0
    for file in whole.files:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"x")
        seen += whole.sha256() != before
        file.write_bytes(content + b"x")
        assert whole.sha256() != before, "the sizes of all files count"
        file.write_bytes(content)
    assert seen == 5


def test_a_folder_in_memory_equals_the_folder_on_disk(tmp_path: Path) -> None:
    write_folder(tmp_path)
    read, kept = (
        load("folder", root=tmp_path, framing=Framing(16, 12), in_memory=in_memory)
        for in_memory in (False, True)
    )
    assert isinstance(kept.train, Arrays)
    assert kept.train.x.dtype == torch.uint8
    for part in ("train", "test"):
        a, b = (next(Loader(getattr(splits, part), 6, CPU).epoch()) for splits in (read, kept))
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.ids, b.ids)
    # and so methods may store something for each image
    assert next(Loader(kept.train, 6, CPU, seed=1).epoch(0)).total == 6
    with pytest.raises(InputError, match="random_scale"):
        load("folder", root=tmp_path, framing=Framing(16, 12, random_scale=True), in_memory=True)


def test_each_image_that_is_added_moves_at_most_one_other_to_or_from_the_test_set() -> None:
    names = [b"%d.png" % i for i in range(60)]
    for share in (0.2, 0.37):
        sets = []
        for n in range(10, 60):
            held = held_out(torch.zeros(n).long(), 1, share, "", "", names[:n])
            assert len(held) == round(n * share)
            sets.append({names[i] for i in held.tolist()})
        for n, (before, after) in enumerate(itertools.pairwise(sets), 10):
            assert len((before ^ after) - {names[n]}) <= 1


def test_a_folder_has_the_same_test_images_however_it_is_given(tmp_path: Path) -> None:
    def tested(root: Path) -> list[str]:
        images = load("folder", root=root, framing=Framing(16, 12), test_share=0.2).test
        assert isinstance(images, Folder)
        names = ["/".join(file.parts[-2:]) for file in images.files]
        return sorted(unicodedata.normalize("NFC", name) for name in names)

    classes = tmp_path / "classes"
    write_folder(classes, parts=("",), per_class=10)
    accents = classes / "cat" / "élan.png"
    (classes / "cat" / "0.png").rename(accents)
    first = tested(classes)
    # nor does a new version choose others
    assert first == ["cat/8.png", "cat/élan.png", "dog/5.png", "dog/7.png"]
    link = tmp_path / "link"
    link.symlink_to(classes)
    assert tested(link) == first
    shutil.copytree(classes, tmp_path / "parts" / "train")
    assert tested(tmp_path / "parts") == tested(tmp_path / "parts" / "train") == first
    accents.rename(accents.with_name(unicodedata.normalize("NFD", accents.name)))
    assert tested(classes) == first
    files = sorted(classes.glob("*/*.png"))
    for where in (classes, link):  # relative paths, or absolute ones
        for base in (Path(), classes, link):
            rows = [f"{base / file.relative_to(classes)},{file.parent.name}\n" for file in files]
            (where / "labels.csv").write_text("file,label\n" + "".join(rows))
            assert tested(where) == tested(where / "labels.csv") == first
    rows.append(f"{files[0].relative_to(classes)},cat\n")
    (link / "labels.csv").write_text("file,label\n" + "".join(rows))
    with pytest.raises(InputError, match=r"names 1 files more than once, such as cat/"):
        tested(link)


def test_a_folder_without_parts_gets_a_fixed_test_split(tmp_path: Path) -> None:
    write_folder(tmp_path, parts=("",), per_class=10)
    a = load("folder", root=tmp_path, framing=Framing(16, 12), test_share=0.2, seed=0)
    assert (len(a.train), len(a.test)) == (16, 4)
    assert not set(a.train.ids.tolist()) & set(a.test.ids.tolist())
    assert sorted(a.test.labels.tolist()) == [0, 0, 1, 1]  # type: ignore[attr-defined]
    b = load("folder", root=tmp_path, framing=Framing(16, 12), test_share=0.2, seed=0)
    assert a.test.ids.tolist() == b.test.ids.tolist()
    other = load("folder", root=tmp_path, framing=Framing(16, 12), test_share=0.2, seed=1, valid=4)
    # no seed is tested on what another was trained on
    assert a.test.ids.tolist() == other.test.ids.tolist()
    # nor does a new version change the test images
    y, names = torch.arange(30) % 3, [b"cat/%d.png" % i for i in range(30)]
    assert held_out(y, 3, 0.2, "", "").tolist() == [3, 8, 10, 24, 28, 29]
    assert held_out(y, 3, 0.2, "", "", names).tolist() == [0, 7, 8, 10, 21, 29]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_not_an_image_is_named(tmp_path: Path, workers: int) -> None:
    write_folder(tmp_path)
    bad = tmp_path / "train" / "cat" / "9.png"
    bad.write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"^\S*9\.png is not a readable image[^\n]*$"):
        load("folder", root=tmp_path, framing=Framing(16, 12), workers=workers)
    whole = (tmp_path / "train" / "cat" / "0.png").read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])  # its header is whole
    splits = load("folder", root=tmp_path, framing=Framing(16, 12), workers=workers)
    with pytest.raises(InputError, match=r"^\S*9\.png is not a readable image[^\n]*$"):
        list(Loader(splits.train, 4, CPU).epoch())
    bad.rename(bad.with_suffix(".txt"))
    with pytest.raises(InputError, match=r"9\.txt has no suffix of an image"):
        load("folder", root=tmp_path)


def test_missing_and_mismatched_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        load("folder", root=tmp_path / "absent")
    with pytest.raises(InputError, match="no image below"):
        load("folder", root=tmp_path)
    write_folder(tmp_path)
    (tmp_path / "train" / "cat").rename(tmp_path / "train" / "bird")
    with pytest.raises(InputError, match="'bird' is only in train/, 'cat' is only in val/"):
        load("folder", root=tmp_path)


def test_unknown_data_sets_get_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load("cifar")


def test_an_epoch_is_a_function_of_seed_and_epoch_and_may_begin_anywhere() -> None:
    data = Arrays(images(23), labels(23))
    loader = Loader(data, 5, CPU, seed=3, pad=1, flip=True)
    whole = list(loader.epoch(2))
    assert sorted(torch.cat([b.ids for b in whole]).tolist()) == list(range(23))
    for start in range(5):
        for a, b in zip(loader.epoch(2, start), whole[start:], strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.ids, b.ids)
    for a, b in zip(loader.epoch(2, start=1, stride=2), whole[1::2], strict=True):
        assert torch.equal(a.x, b.x)
    assert not torch.equal(next(loader.epoch(3)).ids, whole[0].ids)
    assert not torch.equal(next(Loader(data, 5, CPU, seed=4).epoch(2)).ids, whole[0].ids)
    assert len(list(Loader(data, 5, CPU, seed=3, drop_last=True).epoch())) == 4


def test_crop_and_flip_are_what_a_loop_would_do() -> None:
    x = torch.rand(200, 2, 6, 5)
    out, _ = crop_flip(x, generator(1), pad=2)
    padded = torch.nn.functional.pad(x, [2] * 4)
    seen = []
    for i in range(200):
        windows = {
            (dy, dx): padded[i, :, dy : dy + 6, dx : dx + 5] for dy in range(5) for dx in range(5)
        }
        found = [(*at, False) for at, window in windows.items() if torch.equal(out[i], window)]
        found += [
            (*at, True) for at, window in windows.items() if torch.equal(out[i], window.flip(2))
        ]
        assert len(found) == 1, "not a crop of its own image"
        seen.append(found[0])
    assert 70 < sum(flipped for *_, flipped in seen) < 130
    assert {(dy, dx) for dy, dx, _ in seen} == {(dy, dx) for dy in range(5) for dx in range(5)}
    assert torch.equal(crop_flip(x, generator(1), pad=2)[0], out)


def test_alternating_flips_mirror_each_image_in_every_second_epoch() -> None:
    subset = Arrays(images(200), labels(200)).subset(torch.arange(100, 200))
    loader = Loader(subset, 16, CPU, seed=1, flip=True, alternating=True)
    mirrored = [set[int](), set[int](), set[int]()]
    for epoch, found in enumerate(mirrored):
        for batch in loader.epoch(epoch):
            for x, number in zip(batch.x, batch.ids.tolist(), strict=True):
                plain = subset.x[number - 100]
                assert torch.equal(x, plain) != torch.equal(x, plain.flip(2))
                if torch.equal(x, plain.flip(2)):
                    found.add(number)
    assert mirrored[0] == mirrored[2] == set(range(100, 200)) - mirrored[1]
    assert 30 < len(mirrored[0]) < 70
    # Resumed within an epoch, and on two processes: the same images.
    whole, resumed = list(loader.epoch(1)), list(loader.epoch(1, start=3))
    assert torch.equal(resumed[0].x, whole[3].x)
    parts = [next(replace(loader, rank=r, size=2).epoch(1)).x for r in range(2)]
    assert torch.equal(torch.cat(parts), whole[0].x)


def test_cutout_replaces_one_rectangle_by_the_mean_colour() -> None:
    x = torch.rand(400, 2, 8, 6)
    out = cutout(x, 0.5, generator(1))
    seen = set()
    for i in range(400):
        grey = x[i].mean((1, 2), keepdim=True)
        found = []
        for y, z in ((y, z) for y in range(8) for z in range(6)):
            # Four lines and three columns around the pixel (y, z), as far as the image goes.
            one = x[i].clone()
            one[:, max(y - 2, 0) : y + 2, max(z - 1, 0) : z + 2] = grey
            if torch.equal(one, out[i]):
                found.append((y, z))
        assert len(found) == 1
        seen.add(found[0])
    assert seen == {(y, z) for y in range(8) for z in range(6)}


def test_cutout_is_the_same_when_resumed_and_on_two_processes() -> None:
    data = Arrays(images(60), labels(60))
    loader = Loader(data, 16, CPU, seed=1, pad=2, flip=True, cutout=0.5)
    whole = list(loader.epoch(1))
    plain = list(replace(loader, cutout=0.0).epoch(1))
    found, expected = whole[0].frame, plain[0].frame
    assert found is not None
    assert expected is not None
    assert torch.equal(found.rows, expected.rows)  # crops stay as they were
    assert not torch.equal(whole[0].x, plain[0].x)
    assert torch.equal(next(loader.epoch(1, start=3)).x, whole[3].x)
    parts = [next(replace(loader, rank=r, size=2).epoch(1)).x for r in range(2)]
    assert torch.equal(torch.cat(parts), whole[0].x)
    # Test images, which have no seed, are whole.
    unseeded = replace(loader, seed=None)
    assert torch.equal(next(unseeded.epoch()).x, scaled(data.x[:16]))


def test_a_validation_split_keeps_the_ids_of_the_whole_set() -> None:
    part = Arrays(images(12), labels(12)).subset(torch.arange(6, 12))
    train, valid, ids = split_validation(part, 2, seed=0)
    assert valid is not None
    assert valid.ids.tolist() == ids
    assert sorted([*train.ids.tolist(), *ids]) == list(range(6, 12))


def test_waiting_for_data_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("amata.data.feed.time.perf_counter", lambda: float(next(ticks)))
    feed = Feed(Loader(Arrays(images(6), labels(6)), 2, CPU).epoch(), CPU)
    assert len(list(feed)) == 3
    assert feed.waited == 4  # three batches, and the end of the data


def test_arrays_and_streams_check_what_they_are_given() -> None:
    for x, y, message in (
        (images() * 2, labels(), "give uint8"),
        (images() * torch.nan, labels(), "images have values that are not finite"),
        (images()[0], labels(), "shape"),
        (images(), labels(5), "shape"),
    ):
        with pytest.raises(InputError, match=message):
            Arrays(x, y)
    for y, message in (
        (torch.arange(6), "outside the 2 classes"),
        (torch.arange(6) % 2 - 1, "the lowest label is -1; number classes from 0"),
    ):
        with pytest.raises(InputError, match=message):
            Arrays(images(), y, classes=2)
    with pytest.raises(InputError, match=r"len\(\)"):
        len(Stream(iter([]), CPU))
    with pytest.raises(InputError, match=r"data\.valid = 6 leaves nothing of the 6"):
        split_validation(Arrays(images(), labels()), 6, 0)


def test_a_limit_is_a_seeded_sample_with_the_share_of_every_class() -> None:
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 9 + [3])
    whole = Arrays(images(100), y)
    seen = []
    for limit, counts in ((50, [30, 15, 4, 1]), (10, [6, 2, 1, 1]), (4, [1, 1, 1, 1])):
        part, valid, _ = split_validation(whole, 0, seed=3, limit=limit)
        assert valid is None
        assert len(part) == limit
        found = torch.bincount(y[part.ids], minlength=4)
        assert (found - torch.tensor(counts)).abs().max() <= 1, found
        seen.append(set(part.ids.tolist()))
    assert seen[0] > seen[1] > seen[2], "a smaller sample is a part of a larger one"
    other = split_validation(whole, 0, seed=4, limit=50)[0]
    assert set(other.ids.tolist()) != seen[0]
    alone, _, held = split_validation(whole, 20, seed=3)
    part, valid, ids = split_validation(whole, 20, seed=3, limit=10)
    assert ids == held, "the validation split does not depend on the limit"
    assert set(part.ids.tolist()) < set(alone.ids.tolist())
    for given, most, counts in ((0.2, None, [80, 20]), (0.2, 50, [50, 10])):
        part, valid, _ = split_validation(whole, given, 0, most)
        assert [len(part), len(valid or [])] == counts


def test_a_recipe_limits_its_images_and_records_their_number() -> None:
    given = ["data.limit=100", "data.valid=0.1"]
    splits = load_data(load_recipe("mnist5k-amata", given))
    record = splits.record()
    assert (record["train"], record["valid"], len(record["valid_ids"])) == (100, 10, 10)
    assert torch.bincount(splits.train.y).tolist() == pytest.approx([10] * 10, abs=2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("other", ["reference", "torchvision"])
def test_the_pipelines_of_the_bench_read_the_same_pixels(tmp_path: Path, other: str) -> None:
    if other == "torchvision":
        pytest.importorskip("torchvision")
    bench_data.write_pictures(tmp_path, 4)
    images = load_folder(tmp_path, Framing(256, 224), 0, 0.2).train
    cpu = torch.device("cpu")
    ours, theirs = (
        torch.cat(list(pipeline(images, False, 0, cpu)))
        for pipeline in (bench_data._amata, getattr(bench_data, f"_{other}"))
    )
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_bench_of_data_has_a_row_per_pipeline(
    monkeypatch: pytest.MonkeyPatch, amata: Callable[..., Any], tmp_path: Path
) -> None:
    for name, value in {"PICTURES": 4, "BATCH": 2, "TRIALS": 1, "cores": lambda: 1}.items():
        monkeypatch.setattr(bench_data, name, value)
    called = amata("bench", "--data", "--seconds", "0.01", "--out", tmp_path, "--json")
    result = json.loads(called.out)
    assert {"reference", "amata"} <= {row["pipeline"] for row in result["rows"]}
    assert {(row["transform"], row["workers"]) for row in result["rows"]} == {
        ("train", 1),
        ("test", 1),
    }
    assert all(row["images_per_second"] > 0 for row in result["rows"])
    kept = json.loads((tmp_path / "data.json").read_text())
    assert kept["rows"] == result["rows"]
