"""What was trained is loaded, used and exported without its data."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import amata as library
from amata import recipes
from amata.data import Arrays
from amata.errors import InputError
from amata.runs.files import describe_weights, save_tensors, write_record
from amata.tensors import read_tensors
from tests.conftest import ENV, small_net
from tests.test_data import write_folder
from tests.toy import toy_data

SETS = [
    "data.root=data",
    "data.resize=32",
    "data.crop=28",
    "data.workers=0",
    "data.batch_size=8",
    "data.valid=2",
    "model.name=tinycnn",
    "model.args={}",
    "schedule.steps=1",
    "train.epochs=1",
    "train.device=cpu",
    "train.tensorboard=false",
    "train.valid_attack=fgsm",
    'eval.attacks=["clean"]',
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an image folder that is gone, and both of its exports that hold a network."""
    from amata.export import export
    from amata.training.experiment import train

    home = tmp_path_factory.mktemp("home")
    write_folder(home / "data", parts=("",), per_class=8)
    shutil.copytree(home / "data", home / "images")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        train(recipes.load("caltech256-pgd20", SETS), home / "run")
    shutil.rmtree(home / "data")
    for to in ("hf", "robustbench"):
        export(home / "run", to, home / to)
    return home


PLACES = ["run", "run/model.safetensors", "hf", "hf/model.safetensors", "robustbench"]


@pytest.mark.parametrize("place", PLACES)
def test_a_network_is_loaded_without_its_data(place: str, home: Path) -> None:
    net: Any = library.load(home / place)
    weights = read_tensors(home / "run" / "model.safetensors")
    assert not net.training
    assert net.classes == ("cat", "dog")
    assert net.recipe.data.crop == 28
    assert str(net.recipe.ball) == str(recipes.load("caltech256-pgd20").ball)
    assert net.state_dict().keys() == weights.keys()
    assert all(torch.equal(net.state_dict()[name], weights[name]) for name in weights)
    assert net(torch.rand(3, 3, 28, 28)).shape == (3, 2)


FRESH = """
import torch, amata
net = amata.load("run")
assert net.classes == ("cat", "dog"), net.classes
assert torch.isfinite(net(torch.full((2, 3, 28, 28), 0.3))).all()
from amata.cli import main
for call in (["predict", "run", "images", "--robust"], ["export", "run", "--to=hf", "--out=OUT"]):
    try:
        main(call)
    except SystemExit as exit:
        assert not exit.code
"""


@pytest.mark.slow
def test_a_fresh_process_needs_no_data(home: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FRESH.replace("OUT", str(tmp_path / "out"))],
        cwd=home,
        env=ENV,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "images/cat/0.png" in ran.stdout
    assert library.load(tmp_path / "out").classes == ("cat", "dog")


def test_an_exported_architecture_is_not_run(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "hf", tmp_path / "hf")
    (folder / "architecture.py").write_text("raise SystemExit('it ran')")
    assert library.load(folder).classes == ("cat", "dog")
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["model"]["name"] = "os:system"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config.json would run code: model.name = 'os:system'"):
        library.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id2label": {"0": "cat", "2": "dog"}}, "keys of id2label are not 0, 1"),
        ({"id2label": {}}, "id2label: Dictionary should have at least 1 item"),
        ({"shape": [3, 12]}, "shape: List should have at least 3 items"),
        ({"shape": [3, 12, 10**9]}, "shape.2: Input should be less than or equal to 10000"),
        ({"recipe": None}, "recipe: Input should be a valid dictionary"),
        ({"recipe": {"model": {"name": "tinycnn"}}}, r"recipe caltech256-pgd20: \[threat\] needs"),
        ({"id2label": {str(n): "x" for n in range(99_999)}}, "more parameters than its weights"),
    ],
)
def test_a_strangers_config_is_checked(
    change: dict[str, Any], message: str, home: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(home / "hf", tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InputError, match=message) as error:
        library.load(folder)
    assert "\n" not in str(error.value)


def test_an_older_run_needs_its_data(home: Path, tmp_path: Path, amata: Any) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    weights = run / "model.safetensors"
    about = {k: v for k, v in describe_weights(weights).items() if k not in ("classes", "shape")}
    save_tensors(weights, read_tensors(weights), about)
    (run / "split.json").unlink()
    with pytest.raises(InputError, match=r"run does not record its classes, .*no folder"):
        library.load(run)
    arguments = ["export", run, "--to", "hf", "--out", tmp_path / "out"]
    assert amata(*arguments).code == 2
    called = amata(*arguments, "--set", f"data.root={home / 'images'}")
    assert called.code == 0, called.err
    assert library.load(tmp_path / "out").classes == ("cat", "dog")


def test_a_run_made_in_python_fills_its_own_module(tmp_path: Path) -> None:
    x, y = toy_data()
    images = Arrays(x, y, names=["dark", "bright", "never", "rare"])
    settings: dict[str, Any] = {
        "method": library.PGD(ball=library.Linf(0.05)),
        "schedule": library.Constant(steps=1, step_size=0.05),
        "epochs": 1,
        "device": "cpu",
        "progress": False,
    }
    fitted = library.fit(small_net(), images, run=tmp_path / "run", **settings)
    about = describe_weights(tmp_path / "run" / "model.safetensors")
    assert about["classes"] == ["dark", "bright", "never", "rare"]
    assert about["shape"] == [1, 6, 6]
    with pytest.raises(InputError, match=r"pass its network, as in amata.load\('.*', model=model"):
        library.load(tmp_path / "run")
    for place in (tmp_path / "run", tmp_path / "run" / "last.safetensors"):
        own = small_net(7)
        net = library.load(place, model=own)
        assert net is own
        assert net.classes == ("dark", "bright", "never", "rare")
        assert torch.equal(net(x), fitted.model(x))


class Named(TensorDataset):
    """A data set that names its classes, as torchvision's do."""

    classes = ("dark", "bright")


def test_a_loaders_data_set_names_the_classes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method": library.ERM(ball=library.Linf(0.05)),
        "epochs": 1,
        "device": "cpu",
        "progress": False,
    }
    for batches, names in (
        (DataLoader(Named(*toy_data(16)), 8), ("dark", "bright")),
        ([toy_data(16)], ()),
    ):
        run = tmp_path / str(len(names))
        library.fit(small_net(), batches, run=run, **settings)
        assert library.load(run, model=small_net()).classes == names
        with pytest.raises(InputError, match=r"call amata.export.export\(.*, shape=\(3, 32, 32\)"):
            library.export.export(run, "onnx", tmp_path / "out", model=small_net())


def test_a_network_keeps_attributes_of_its_own(tmp_path: Path, home: Path) -> None:
    own: Any = library.load(home / "run")
    own.classes = 2
    assert library.load(home / "run", model=own).classes == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda _: library.load(3),  # type: ignore[arg-type]
            "path = 3 must be a run folder",
        ),
        (lambda home: library.load(home / "nowhere"), "no run folder or weights file at"),
        (lambda home: library.load(home / "images"), "is not a run folder"),
        (
            lambda home: library.load(home / "run", model=3),  # type: ignore[arg-type]
            "model = int must be an nn.Module",
        ),
        (lambda home: library.load(home / "run", device="gpu"), "device = 'gpu' is not a device"),
        (lambda home: library.load(home / "run", model=nn.Linear(1, 1)), "do not fit the model"),
        (lambda home: library.load(home / "robustbench" / "weights.pt"), r"\(in Python, recipe="),
    ],
)
def test_what_cannot_be_loaded_is_one_line(call: Any, message: str, home: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        call(home)
    assert "\n" not in str(error.value)


def test_an_unfinished_run_gives_its_best_so_far(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    (run / "summary.json").unlink()
    assert library.load(run).classes == ("cat", "dog")
    (run / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no model.safetensors; `amata train --resume"):
        library.load(run)


def test_a_run_can_be_evaluated_from_another_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amata: Any
) -> None:
    shutil.copytree(home / "images", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for root in ("data", "~/data"):
        run = tmp_path / root[0]
        sets = [f"--set={s}" for s in [*SETS, f"data.root={root}"]]
        assert amata("train", "caltech256-pgd20", *sets, "--out", run).code == 0
        with monkeypatch.context() as patch:
            patch.chdir("/")
            called = amata("eval", run)
        assert called.code == 0, called.err
        assert recipes.load(run / "recipe.toml").data.root == str(tmp_path / "data")


@pytest.mark.parametrize("place", ["hf", "robustbench", "run/model.safetensors"])
def test_what_has_no_run_folder_is_evaluated_and_left_as_it_is(
    place: str, home: Path, tmp_path: Path, amata: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMATA_DATA", str(tmp_path))
    before = sorted(home.rglob("*"))
    called = amata("eval", home / place, "--attacks", "clean")
    assert called.code == 2
    assert f"{home / place} does not record where its images are: data folder needs " in called.err
    root = f"data.root={home / 'images'}"
    called = amata("eval", home / place, "--attacks", "clean", "--set", root, "--json")
    assert called.code == 0, called.err
    assert json.loads(called.out)["clean"]["n"] > 0
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("place", PLACES[:-1])
def test_data_with_other_classes_are_not_evaluated(
    place: str, home: Path, tmp_path: Path, amata: Any
) -> None:
    """The folders bird and cat, where the network has cat and dog: cat is another number."""
    shutil.copytree(home / "images", tmp_path / "data")
    (tmp_path / "data" / "dog").rename(tmp_path / "data" / "bird")
    call = ("eval", home / place, "--attacks=clean", f"--set=data.root={tmp_path / 'data'}")
    called = amata(*call)
    assert (called.code, called.out) == (2, "")
    assert "class 0 of the data is 'bird', and 'cat' for the network" in called.err
    (tmp_path / "data" / "bird").rename(tmp_path / "data" / "dog")
    assert amata(*call).code == 0


def test_names_of_another_kind_are_refused(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    write_record(run / "split.json", {"classes": [1, 2], "shape": [3, 28, 28]})
    with pytest.raises(InputError, match=r"classes.0: Input should be a valid string"):
        library.load(run)
