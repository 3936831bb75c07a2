"""CIFAR-100, SVHN and Tiny ImageNet: their published forms are read exactly, others refused."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from amata.data import Arrays, load
from amata.data.cifar import CIFAR10, CIFAR100
from amata.data.matlab import read_mat
from amata.errors import InputError
from tests.published import (
    compressed,
    element,
    encode,
    mat_file,
    matrix,
    pictures,
    write_cifar100,
    write_parquet,
    write_svhn,
    write_tinyimagenet,
)


def as_parquet(
    folder: Path, *, side: int = 32, below: str = "", test: str = "test", **columns: Any
) -> tuple[np.ndarray, list[int]]:
    x, labels = pictures(4, side, side), [1, 0, 9, 5]
    for part in ("train", test):
        path = folder / below / f"{part}-00000-of-00001.parquet"
        write_parquet(path, [encode(p) for p in x], labels, **columns)
    return x, labels


FORMS: dict[str, tuple[str, Callable[[Path], tuple[np.ndarray, list[int]]]]] = {
    "cifar100 batches": ("cifar100", write_cifar100),
    "cifar100 parquet": (
        "cifar100",
        partial(as_parquet, below="cifar100", image="img", label="fine_label"),
    ),
    "cifar10 of a hub": ("cifar10", partial(as_parquet, below="plain_text", image="img")),
    "svhn files": ("svhn", write_svhn),
    "svhn parquet": ("svhn", partial(as_parquet, below="cropped_digits")),
    "tinyimagenet archive": ("tinyimagenet", write_tinyimagenet),
    "tinyimagenet parquet": (
        "tinyimagenet",
        partial(as_parquet, side=64, test="valid", names=[f"n{i}" for i in range(10)]),
    ),
}


@pytest.mark.parametrize(("name", "write"), FORMS.values(), ids=FORMS)
def test_a_published_form_is_read(
    tmp_path: Path,
    name: str,
    write: Callable[[Path], tuple[np.ndarray, list[int]]],
    amata: Callable[..., Any],
) -> None:
    x, labels = write(tmp_path)
    test = load(name, root=tmp_path).test
    assert isinstance(test, Arrays)
    assert test.x.dtype == torch.uint8
    order = test.ids.argsort()  # a fixed random order, where files are sorted by class
    if name == "tinyimagenet" and (tmp_path / "tiny-imagenet-200").is_dir():
        order = order.flip(0)  # val_annotations.txt is written from the last to the first
    assert test.y[order].tolist() == labels
    assert torch.equal(test.x[order], torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
    called = amata("data", "check", name, "--root", tmp_path)
    assert (
        f"{name} test: {len(labels)} images of {test.shape}, {test.classes} classes" in called.out
    )


def test_classes_have_their_names(tmp_path: Path) -> None:
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)
    assert CIFAR10.classes[3] == "cat"
    write_tinyimagenet(tmp_path)
    assert load("tinyimagenet", root=tmp_path).train.names == ("word 0", "word 1", "word 2")
    (tmp_path / "tiny-imagenet-200" / "words.txt").unlink()
    assert load("tinyimagenet", root=tmp_path).train.names[0] == "n00000000"


@pytest.mark.parametrize("name", ["cifar100", "svhn", "tinyimagenet"])
def test_absent_files_name_the_command(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"has neither .*; run `amata data fetch {name}`"):
        load(name, root=tmp_path)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "f4", "f8"])
def test_mat_files_are_what_scipy_reads(tmp_path: Path, dtype: str, order: str) -> None:
    path, array = tmp_path / "a.mat", np.arange(24).reshape(2, 3, 4).astype(order + dtype)
    kind, array_class = {"u1": (2, 9), "i2": (3, 10), "u4": (6, 13), "f4": (7, 7), "f8": (9, 6)}[
        dtype
    ]
    write = partial(matrix, order=order, kind=kind, array_class=array_class)
    path.write_bytes(
        mat_file(write("long name", array), write("b", array[:1, :1, :1]), order=order)
    )
    for name, found in zip(("long name", "b"), read_mat(path, "long name", "b"), strict=True):
        assert np.array_equal(found, scipy.io.loadmat(path)[name])


@pytest.mark.parametrize("pack", [True, False])
def test_mat_files_of_scipy_are_read(tmp_path: Path, pack: bool) -> None:
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 5), np.uint8)
    others = {"text": "abc", "cell": np.array([1, "a"], object), "complex": np.array([1j])}
    arrays = {**others, "X": x, "y": np.array([[3.0]])}
    scipy.io.savemat(tmp_path / "a.mat", arrays, do_compression=pack)
    found_x, found_y = read_mat(tmp_path / "a.mat", "X", "y")
    assert np.array_equal(found_x, x)
    assert found_y.tolist() == [[3.0]]


X = pictures(2).transpose(1, 2, 3, 0)
Y = np.array([[1], [10]], np.uint8)
BOMB = struct.pack("<II", 14, 1 << 31) + bytes(1 << 20)
BAD_MAT = {
    "empty": (b"", "no MATLAB 5 header"),
    "version 7.3": (b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM", "not of version 5"),
    "HDF5": (b"\x89HDF\r\n\x1a\n".ljust(200), "no MATLAB 5 header"),
    "cut": (mat_file(matrix("X", X))[:-9], "ends after the file"),
    "no labels": (mat_file(matrix("X", X)), "no array y"),
    "a bomb": (mat_file(compressed(BOMB)), "holds 2147483648 bytes, above the limit"),
    "more than declared": (
        mat_file(compressed(matrix("X", X) + bytes(9))),
        "another size than it declares",
    ),
    "a wrong checksum": (
        mat_file(compressed(matrix("X", X))[:-1] + b"!", matrix("y", Y)),
        "data check",
    ),
    "a huge small element": (mat_file(struct.pack("<II", 9 << 16 | 14, 0)), "more than 4 bytes"),
    "fewer pixels than the shape": (
        mat_file(
            matrix("X", X).replace(struct.pack("<4i", *X.shape), struct.pack("<4i", 32, 32, 3, 9))
        ),
        "another size than it declares",
    ),
    "a negative shape": (
        mat_file(matrix("X", X).replace(struct.pack("<i", 2), struct.pack("<i", -2), 1)),
        "shape or a type",
    ),
    "an unknown type": (mat_file(matrix("X", X, kind=18)), "shape or a type"),
    "an array without anything": (mat_file(element(14, b"")), "buffer"),
    "grey": (mat_file(matrix("X", X[:, :, :1]), matrix("y", Y)), "not the digits of SVHN"),
    "doubles": (
        mat_file(matrix("X", X.astype("<f8"), kind=9, array_class=6), matrix("y", Y)),
        "not the digits of SVHN",
    ),
    "one label": (mat_file(matrix("X", X), matrix("y", Y[:1])), "not the digits of SVHN"),
    "a label of 11": (mat_file(matrix("X", X), matrix("y", Y + 1)), "labels must be 1 to 10"),
    "no digits": (mat_file(matrix("X", X[..., :0]), matrix("y", Y[:0])), "there are no images"),
}


@pytest.mark.parametrize(("content", "message"), BAD_MAT.values(), ids=BAD_MAT)
def test_a_bad_mat_file_is_one_line(
    tmp_path: Path, content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMATA_MAX_BYTES", str(1 << 30))
    write_svhn(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(content)
    with pytest.raises(InputError, match=rf"^[^\n]*train_32x32\.mat[^\n]*{message}[^\n]*$"):
        load("svhn", root=tmp_path)


def test_the_limit_of_a_mat_file_is_for_all_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMATA_MAX_BYTES", str(2 * X.nbytes))
    write_svhn(tmp_path)
    bombs = [compressed(matrix(name, X)) for name in ("a", "b", "X")]
    (tmp_path / "train_32x32.mat").write_bytes(mat_file(*bombs, matrix("y", Y)))
    with pytest.raises(InputError, match=r"train_32x32\.mat holds \d+ bytes, above the limit"):
        load("svhn", root=tmp_path)


def test_one_changed_byte_gives_arrays_or_an_error(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.mat", np.random.default_rng(0)
    small = np.arange(6, dtype=np.uint8).reshape(2, 3)
    refused: list[str] = []
    for content in (
        mat_file(matrix("X", small), matrix("y", Y)),
        mat_file(compressed(matrix("X", small)), compressed(matrix("y", Y))),
    ):
        for _ in range(100):
            changed = bytearray(content)
            changed[rng.integers(100, len(content))] = rng.integers(256)
            path.write_bytes(changed)
            try:
                found = read_mat(path, "X", "y")
            except InputError as error:
                refused.append(str(error))
            else:
                assert [type(array) for array in found] == [np.ndarray] * 2
    assert 0 < len(refused) < 200
    assert all(line.startswith(str(path)) for line in refused)


def replace(path: str, content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / "tiny-imagenet-200" / path).write_bytes(content)


BAD_TINY: dict[str, tuple[Callable[[Path], object], str]] = {
    "another size": (
        replace("val/images/val_1.JPEG", encode(pictures(1, 63, 64)[0], "JPEG")),
        r"val_1\.JPEG has 63 x 64 pixels, not 64 x 64",
    ),
    "not an image": (replace("train/n00000001/images/n00000001_0.JPEG", b"x"), "not a readable"),
    "an unknown class": (
        replace("val/val_annotations.txt", b"val_0.JPEG\tn1\n"),
        r"line 1: 'val_0.JPEG n1' does not name an image and one of the 3 classes",
    ),
    "a path outside": (
        replace("val/val_annotations.txt", b"../../x.JPEG\tn00000001\n"),
        "line 1: .* does not name an image",
    ),
    "an absent image": (
        replace("val/val_annotations.txt", b"val_9.JPEG\tn00000001\n"),
        r"val_9\.JPEG has no image",
    ),
    "no annotations": (replace("val/val_annotations.txt", b""), "val_annotations.txt has no image"),
    "not text": (replace("val/val_annotations.txt", b"\xff\t"), "not UTF-8 text"),
}


@pytest.mark.parametrize(("change", "message"), BAD_TINY.values(), ids=BAD_TINY)
def test_a_bad_archive_of_tinyimagenet_is_one_line(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    write_tinyimagenet(tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$"):
        load("tinyimagenet", root=tmp_path)


def test_cifar100_files_go_through_the_same_parser(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    evil = tmp_path / "cifar-100-python" / "train"
    evil.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    with pytest.raises(InputError, match=r"not a CIFAR-100 batch \(it imports os\.system\)"):
        load("cifar100", root=tmp_path)
    assert not (tmp_path / "owned").exists()
