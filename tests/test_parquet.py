"""Any parquet files: parts, columns, names and sizes are found, or the error says what to set."""

import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from amata import recipes
from amata.data import Arrays, Columns, Framing, Splits, load
from amata.errors import InputError
from amata.training.trust import review
from tests.published import encode, pictures, write_parquet

X = pictures(12, 10, 8)
Y = [i % 3 for i in range(12)]
CONTENTS = [encode(pixels) for pixels in X]


def write(folder: Path, *files: str, **columns: Any) -> None:
    for file in files:
        write_parquet(folder / file, CONTENTS, Y, **columns)


def check(splits: Splits, train: int, test: int) -> None:
    assert isinstance(splits.train, Arrays)
    assert isinstance(splits.test, Arrays)
    assert (len(splits.train), len(splits.test)) == (train, test)
    assert splits.train.shape == (3, 8, 10)
    pixels = torch.from_numpy(X.transpose(0, 3, 1, 2).copy())
    for part in (splits.train, splits.test):  # ids tell which row an image is
        assert torch.equal(part.x, pixels[part.ids % 12])
        assert part.y.tolist() == [Y[i % 12] for i in part.ids]


LAYOUTS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "a hub's": (("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"), "", 12, 12),
    "two shards": (("train-0.parquet", "train-1.parquet", "validation-0.parquet"), "", 24, 12),
    "valid": (("train-0.parquet", "valid-0.parquet"), "", 12, 12),
    "val": (("train.parquet", "val.parquet"), "", 12, 12),
    "a folder per part": (("train/0000.parquet", "test/0000.parquet"), "", 12, 12),
    "in data": (("data/train-0.parquet", "data/test-0.parquet"), "", 12, 12),
    "test before valid": (("train-0.parquet", "valid-0.parquet", "test-0.parquet"), "", 12, 12),
    "only train": (("train-0.parquet",), "", 9, 3),
    "no parts": (("0000.parquet", "0001.parquet"), "", 18, 6),
    "a file": (("any.parquet",), "any.parquet", 9, 3),
}


@pytest.mark.parametrize(("files", "root", "train", "test"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_is_found(
    tmp_path: Path, files: tuple[str, ...], root: str, train: int, test: int
) -> None:
    write(tmp_path, *files)
    splits = load("parquet", root=tmp_path / root, test_share=0.25)
    check(splits, train, test)
    if test < 12:
        assert not set(splits.train.ids.tolist()) & set(splits.test.ids.tolist())
        again = load("parquet", root=tmp_path / root, test_share=0.25, seed=1)
        assert again.test.ids.tolist() == splits.test.ids.tolist()


BAD_LAYOUTS: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "no parquet file in .*; set data.root to a .parquet file, or to a folder"),
    "only test": (("test-0.parquet",), "has test-0.parquet, but no train"),
    "an unknown part": (("train-0.parquet", "dev-0.parquet"), r"dev-0\.parquet is neither of"),
    "two sets": (("a/train-0.parquet", "b/train-0.parquet"), "has several sets, a, b; set data.ro"),
}


@pytest.mark.parametrize(("files", "message"), BAD_LAYOUTS.values(), ids=BAD_LAYOUTS)
def test_another_layout_is_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    write(tmp_path, *files)
    with pytest.raises(InputError, match=rf"^[^\n]*{message}[^\n]*$"):
        load("parquet", root=tmp_path)


COLUMNS: dict[str, tuple[dict[str, Any], Columns]] = {
    "img and labels": ({"image": "img", "label": "labels"}, Columns()),
    "fine labels": ({"label": "fine_label"}, Columns()),
    "class": ({"label": "class"}, Columns()),
    "bytes": ({"plain": True}, Columns()),
    "chosen": ({"image": "photo", "label": "kind"}, Columns("photo", "kind")),
}


@pytest.mark.parametrize(("columns", "chosen"), COLUMNS.values(), ids=COLUMNS)
def test_columns_are_found_or_chosen(
    tmp_path: Path, columns: dict[str, Any], chosen: Columns
) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet", **columns)
    check(load("parquet", root=tmp_path, columns=chosen), 12, 12)


def test_absent_columns_are_named(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", image="photo")
    for chosen, message in (
        (Columns(), "no column image or img; set data.image_column to one of photo, label"),
        (Columns("photo", "kind"), "no column kind; set data.label_column to one of photo, label"),
        (Columns("label"), "its column label holds int64"),
        (Columns("photo", "photo"), "labels are not integers"),
    ):
        with pytest.raises(InputError, match=rf"^[^\n]*train-0\.parquet [^\n]*{message}"):
            load("parquet", root=tmp_path, columns=chosen)


NAMES: dict[str, tuple[Any, Any, tuple[str, ...] | str]] = {
    "none": (None, None, ("0", "1", "2")),
    "schema": (["a", "b", "c"], None, ("a", "b", "c")),
    "a list": (None, ["a", "b", "c", "d"], ("a", "b", "c", "d")),
    "the file before the schema": (["n1", "n2", "n3"], ["a", "b", "c"], ("a", "b", "c")),
    "name: label": (None, {"b": 1, "a": 0, "c": 2}, ("a", "b", "c")),
    "label: name": (None, {"0": "a", "2": "c", "1": "b"}, ("a", "b", "c")),
    "id: words": (
        None,
        {"n1": "crane, bird", "n2": "cat", "n3": "crane, machine"},
        ("crane (n1)", "cat", "crane (n3)"),
    ),
    "odd schemas are ignored": ({"a": {}}, None, ("0", "1", "2")),
    "too few": (None, ["a", "b"], r"labels are in \[0, 2\], outside the 2 classes"),
    "numbers": (None, [1, 2, 3], "classes.json does not name classes .*names are not texts"),
    "a gap": (None, {"0": "a", "2": "b"}, "no class has the label 1"),
    "nested": (None, {"a": ["b"]}, "neither labels nor names"),
    "a number": (None, 3, "not a list of 1 to 100000 names"),
    "deep": (None, "[" * 100_000, "does not name classes"),
    "large": (None, " " * (1 << 20) + "[]", "more than 1048576 bytes"),
}


@pytest.mark.parametrize(("schema", "file", "expected"), NAMES.values(), ids=NAMES)
def test_classes_are_named(
    tmp_path: Path, schema: Any, file: Any, expected: tuple[str, ...] | str
) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet", names=schema)
    if file is not None:
        text = file if isinstance(file, str) else json.dumps(file)
        (tmp_path / "classes.json").write_text(text)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=rf"^[^\n]*{expected}[^\n]*$"):
            load("parquet", root=tmp_path)
        return
    splits = load("parquet", root=tmp_path)
    assert splits.train.names == splits.test.names == expected


def test_parts_agree_on_their_classes(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", CONTENTS, Y)
    write_parquet(tmp_path / "test-0.parquet", CONTENTS[:2], [0, 1])
    splits = load("parquet", root=tmp_path)
    assert splits.test.names == splits.train.names == ("0", "1", "2")
    write_parquet(tmp_path / "train-0.parquet", CONTENTS, Y, names=["a", "b", "c"])
    write_parquet(tmp_path / "test-0.parquet", CONTENTS, Y, names=["b", "a", "c"])
    with pytest.raises(InputError, match="different names of classes"):
        load("parquet", root=tmp_path)


@pytest.mark.parametrize("odd", ["train", "test"])
def test_images_of_several_sizes_are_cropped(tmp_path: Path, odd: str) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet")
    wide = encode(pictures(1, 30, 20)[0])
    write_parquet(tmp_path / f"{odd}-0.parquet", [*CONTENTS[1:], wide], Y)
    splits = load("parquet", root=tmp_path, framing=Framing(16, 12))
    part = splits.train if odd == "train" else splits.test
    assert isinstance(part, Arrays)
    assert splits.train.shape == splits.test.shape == (3, 12, 12)
    image = Image.open(io.BytesIO(wide)).resize((24, 16)).crop((6, 2, 18, 14))
    position = int((part.ids == 11).nonzero())
    assert np.array_equal(part.x[position].permute(1, 2, 0).numpy(), np.asarray(image))
    with pytest.raises(InputError, match=r"data\.random_scale draws many crops"):
        load("parquet", root=tmp_path, framing=Framing(16, 12, random_scale=True))


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [*CONTENTS[1:], encode(pictures(1, 30, 20)[0])], Y)
    with pytest.raises(InputError, match=r"several sizes; set data\.resize and data\.crop"):
        load("parquet", root=tmp_path)


@pytest.mark.parametrize("sides", [(), ("--set=data.resize=16", "--set=data.crop=12")])
def test_a_run_on_parquet_predicts_as_it_was_trained(
    sides: tuple[str, ...], tmp_path: Path, amata: Callable[..., Any]
) -> None:
    """As the images are, or resized and cropped although they have one size."""
    write(tmp_path, "train-0.parquet", "test-0.parquet")
    (tmp_path / "one.png").write_bytes(CONTENTS[0])
    sets = (f"data.root={tmp_path}", "data.name=parquet", "model.name=wrn-10-1", "data.valid=0")
    small = ("train.device=cpu", "schedule.k_max=1")
    words = [f"--set={each}" for each in (*sets, *small, "schedule.k_min=1")]
    run = tmp_path / "run"
    called = amata("train", "mnist5k-amata", "--epochs=1", *words, *sides, "--out", run)
    assert called.code == 0, called.err
    found = amata("predict", run, tmp_path / "one.png", "--json")
    assert found.code == 0, found.err
    split = json.loads((run / "split.json").read_text())
    assert split["shape"] == ([3, 12, 12] if sides else [3, 8, 10])


def test_photos_of_a_turned_camera_have_another_size(tmp_path: Path) -> None:
    turned, file = Image.Exif(), io.BytesIO()
    turned[0x0112] = 6
    Image.fromarray(X[0]).save(file, "PNG", exif=turned)
    for contents in ([*CONTENTS[1:], file.getvalue()], [file.getvalue(), *CONTENTS[1:]]):
        write_parquet(tmp_path / "a.parquet", contents, Y)
        splits = load("parquet", root=tmp_path / "a.parquet", framing=Framing(8, 8))
        assert splits.train.shape == (3, 8, 8)
    write_parquet(tmp_path / "a.parquet", [file.getvalue()] * 12, Y)
    assert load("parquet", root=tmp_path / "a.parquet").train.shape == (3, 10, 8)


def test_limits_hold_for_any_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [encode(np.zeros((8, 80, 3), np.uint8))] * 12, Y)
    read = partial(load, "parquet", root=path)
    for most, message in ((1000, "above the limit of 1000"), (23_039, "holds 23040 bytes, above")):
        monkeypatch.setenv("AMATA_MAX_BYTES", str(most))
        with pytest.raises(InputError, match=rf"a\.parquet[^\n]*{message}[^\n]*AMATA_MAX_BYTES"):
            read()
    monkeypatch.setenv("AMATA_MAX_BYTES", "1000000")
    monkeypatch.setenv("AMATA_MAX_PIXELS", "79")
    with pytest.raises(InputError, match=r"a\.parquet, image 0 has 80 x 8 pixels, above the limit"):
        read()
    monkeypatch.delenv("AMATA_MAX_PIXELS")
    write_parquet(path, CONTENTS[:1] * 100_000, [0] * 100_000)  # repeated, so the file is small
    with pytest.raises(InputError, match="holds 12800000 bytes, above the limit"):
        read()
    monkeypatch.delenv("AMATA_MAX_BYTES")
    for label, message in (
        (10**12, "labels go up to 1000000000000, and at"),
        (-1, r"the lowest label is -1; number classes from 0"),
    ):
        write_parquet(path, CONTENTS[:2], [0, label])
        with pytest.raises(InputError, match=message):
            read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a file"):
        load("parquet", root=tmp_path)


def test_a_recipe_trains_on_parquet(tmp_path: Path, amata: Callable[..., Any]) -> None:
    contents, names = [encode(pixels) for pixels in pictures(12, 28, 28)], ["a", "b", "c"]
    path = tmp_path / "set" / "all.parquet"
    write_parquet(path, contents, Y, image="photo", label="kind", names=names)
    sets = [
        *("data.name=parquet", f"data.root={path}", "data.valid=0"),
        *("data.image_column=photo", "data.label_column=kind", "model.name=tinycnn"),
        *("train.epochs=1", "data.batch_size=4", "eval.attacks=['clean']", "train.device=cpu"),
        *("train.tensorboard=false", "method.name=erm"),
    ]
    options = [word for text in sets for word in ("--set", text)]
    called = amata("train", "mnist5k-pgd", *options, "--out", tmp_path / "run")
    assert called.code == 0, called.err
    assert json.loads((tmp_path / "run" / "split.json").read_text())["classes"] == ["a", "b", "c"]
    called = amata("eval", tmp_path / "run", "--attacks", "clean")
    assert called.code == 0, called.err
    assert "reading data from" in called.err


@pytest.mark.parametrize("form", ["file", "folder", "name"])
def test_the_check_of_parquet_takes_columns(
    form: str, tmp_path: Path, amata: Callable[..., Any]
) -> None:
    path = tmp_path / "set" / "all.parquet"
    write_parquet(path, CONTENTS, Y, image="photo", label="kind", names=["a", "b", "c"])
    forms: dict[str, list[Any]] = {
        "file": [path],
        "folder": [path.parent],
        "name": ["parquet", "--root", path],
    }
    words = forms[form]
    called = amata("data", "check", *words)
    assert called.code == 2
    assert "has no column image or img" in called.err
    columns = ["--image-column", "photo", "--label-column", "kind"]
    called = amata("data", "check", *words, *columns, "--json")
    assert called.code == 0, called.err
    found = json.loads(called.out)
    assert found["train"]["classes"].keys() == {"a", "b", "c"}
    assert found["train"]["images"] + found["test"]["images"] == len(Y)


def test_the_check_of_a_name_of_the_hub_is_not_one_of_a_folder(
    tmp_path: Path, amata: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    assert "needs the package datasets" in amata("data", "check", "hf/owner/set").err
    assert "must be hf/NAME" in amata("data", "check", "hf/a/b/c").err
    (tmp_path / "hf" / "owner" / "set").mkdir(parents=True)
    assert "no image below hf/owner/set" in amata("data", "check", "hf/owner/set").err


def make_hub(folder: Path, name: str, **columns: Any) -> None:
    """A local data set, which the package loads by name as one of the hub."""
    write(folder / name, "train-0.parquet", "test-0.parquet", **columns)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it connects"))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_of_the_hub_is_read(hub: Path) -> None:
    make_hub(hub, "owner/set", names=["a", "b", "c"])
    splits = load("hf/owner/set")
    check(splits, 12, 12)
    make_hub(hub, "plain", image="photo", label="kind", plain=True)
    check(load("hf/plain", columns=Columns("photo", "kind")), 12, 12)
    with pytest.raises(InputError, match=r"hf/plain train has no column image or img; set data.im"):
        load("hf/plain")


@pytest.mark.filterwarnings("ignore")
def test_images_in_files_of_the_hub_are_read(hub: Path) -> None:
    for i, (content, label) in enumerate(zip(CONTENTS, Y, strict=True)):
        path = hub / "files" / "train" / "abc"[label] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    splits = load("hf/files", test_share=0.25)
    assert (len(splits.train), len(splits.test)) == (9, 3)
    assert splits.train.names == ("a", "b", "c")


def test_a_stranger_who_names_the_hub_is_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    recipe = recipes.load("mnist5k-pgd", ["data.name=hf/owner/set"])
    review(recipe, tmp_path / "recipe.toml", notes.append)
    assert notes == [f"loading hf/owner/set from the hub (data.name in {tmp_path}/recipe.toml)"]
    review(recipe, tmp_path / "recipe.toml", notes.append, given=["data.name=hf/owner/set"])
    assert len(notes) == 1


BAD_HUB = {
    "hf/": "must be hf/NAME or hf/OWNER/NAME",
    "hf/../evil": "must be hf/NAME",
    "hf//etc": "must be hf/NAME",
    "hf/a/b/c": "must be hf/NAME",
    "hf/a:": "must be hf/NAME",
    "hf/a\n": "must be hf/NAME",
}


@pytest.mark.parametrize(("name", "message"), BAD_HUB.items(), ids=map(repr, BAD_HUB))
def test_bad_names_of_the_hub_are_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(name)


def test_hub_data_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"needs the package datasets, .*'datasets>="):
        load("hf/owner/set")


@pytest.mark.filterwarnings("ignore")
def test_an_unknown_data_set_of_the_hub_is_one_line(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"^data hf/owner/absent cannot be loaded \([^\n]*\); che"):
        load("hf/owner/absent")
