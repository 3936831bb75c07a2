"""Runs made in Python by amata.fit: what they take, what they record, and how they are resumed."""

import contextlib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import amata
from amata.attacks.preserve import input_grad
from amata.errors import InputError
from amata.export import Trained
from amata.export.card import card
from amata.recipes import load
from amata.recipes.recorded import describe_object
from amata.runs import RunFolder
from amata.runs.files import write_record
from amata.studies.compare import compare_runs
from amata.studies.differences import comparability_warnings
from amata.studies.titles import recipe_titles
from amata.training.batches import training_batches
from tests.conftest import ROOT, Called, small_net
from tests.toy import Notes, StopAt, toy_data, without_times

BALL = amata.Linf(0.05)
METHOD = amata.PGD(ball=BALL, reach=1.5)
SCHEDULE = amata.Linear(k_min=1, k_max=3, tau="1/10")
QUICK: dict[str, Any] = {
    "method": METHOD,
    "schedule": SCHEDULE,
    "optim": amata.SGD(lr=0.02, ema=0.9),
    "epochs": 3,
    "batch_size": 16,
    "device": "cpu",
    "progress": False,
}


@dataclass(frozen=True, kw_only=True)
class Lazy(amata.Method):
    """Forgets to update the weights."""

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        net.backward(batch.x, batch.y)


@dataclass(frozen=True, kw_only=True)
class Counting(amata.Method):
    """Remembers a number that is no tensor."""

    def step(self, net: Any, batch: Any, u: Any, rng: Any, memory: Any) -> None:
        memory["n"] = 3
        net.backward(batch.x, batch.y)
        net.apply()


@dataclass(frozen=True, kw_only=True)
class Idle(amata.Method):
    """Forgets the gradient."""

    def step(self, net: Any, *_: Any) -> None:
        net.apply()


@dataclass(frozen=True, kw_only=True)
class Averaging(amata.Method):
    """Has torch's usual loss, which is a mean, in the attack or in the update."""

    attack: bool = False

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        if self.attack:
            net.ascent(self.ball.around(batch.x), batch.x, batch.y, 1, 0.1, loss=cross_entropy)
        net.backward(batch.x, batch.y, loss=cross_entropy)


def nothing(z: Tensor, y: Tensor) -> None:
    """A loss that forgets its return."""


def not_a_number(z: Tensor, y: Tensor) -> Tensor:
    return z.sum(1) * float("nan")


@dataclass(frozen=True, kw_only=True)
class Lossy(amata.Method):
    loss: Any
    more: Any = None

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        net.backward(batch.x, batch.y, loss=self.loss)
        net.apply()


def constant(z: Tensor, y: Tensor) -> Tensor:
    return torch.ones(len(y))


@dataclass(frozen=True, kw_only=True)
class Calling(amata.Method):
    """Takes net for the model."""

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        net(batch.x)


@dataclass(frozen=True, kw_only=True)
class Backwards(amata.Method):
    """Takes back a step."""

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        net.ascent(self.ball.around(batch.x), batch.x, batch.y, -1, 0.1)


@dataclass(frozen=True, kw_only=True)
class Boundless(amata.Method):
    """Passes the ball, not the region around the images."""

    def step(self, net: Any, batch: Any, *_: Any) -> None:
        net.ascent(self.ball, batch.x, batch.y, 1, 0.1)


@torch.inference_mode()
def inferred_net() -> nn.Module:
    return small_net()


def test_fit_without_a_method_shows_the_shortest_right_call() -> None:
    for given in ({}, {"method": METHOD}, {"schedule": SCHEDULE}):
        with pytest.raises(InputError, match=r"needs method= and schedule=, or recipe=.*amata.fit"):
            amata.fit(small_net(), toy_data(), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "pgd"}, "method = 'pgd' must be a method such as amata.PGD"),
        ({"method": amata.PGD}, "must be a method such as amata.PGD"),
        ({"schedule": "linear"}, "schedule = 'linear' must be a schedule"),
        ({"schedule": lambda epoch, epochs: None}, r"must return \(steps, step_size\).* not None"),
        (
            {"schedule": lambda epoch, epochs: (1 - epoch, 0.1)},
            r"^in epoch 3 of 3: steps of the schedule = -1 must be at least 0",
        ),
        ({"method": Counting(ball=BALL)}, r"Counting.step\(\) keeps int as memory\['n'\]"),
        ({"optim": "sgd"}, r"optim = 'sgd' must be amata.SGD"),
        ({"epochs": 0}, r"fit\(\): epochs: input should be .*, not 0"),
        ({"model": None}, "model must be an nn.Module, not NoneType"),
        ({"model": small_net().requires_grad_(False)}, "no parameter .* requires a gradient"),
        ({"train": (toy_data()[0], toy_data()[1] + 0.5)}, "labels must be whole numbers"),
        ({"train": None}, r"^training data must be a pair \(x, y\) .*, not NoneType"),
        ({"train": toy_data()[0]}, "not Tensor"),
        ({"train": "images/"}, "not str"),
        ({"train": {"x": toy_data()[0]}}, "a dict with the keys 'x' needs .* a label"),
        ({"train": TensorDataset(toy_data()[0])}, "image 0: give .images, labels., or a dict"),
        ({"train": (255 * toy_data()[0], toy_data()[1])}, "normalisation inside the model"),
        ({"train": (toy_data()[0].gt(0.5).byte(), toy_data()[1])}, r"no value above 1; give x.fl"),
        ({"train": [(torch.ones(1, 6, 6) * 3, 1)]}, "normalisation inside the model"),
        ({"train": [(torch.ones(1, 6, n), 1) for n in (6, 7)]}, "one image is .* and another"),
        ({"train": [(torch.ones(1, 6, 6), 0.5)] * 2}, "the label of an item must be one whole"),
        ({"valid": iter([toy_data()])}, "validation data are an iterator, which can be read only"),
        ({"valid": 1.5}, r"valid: 1.5 must be a number of images, or a share such as 0.1"),
        ({"valid": 96}, "data.valid = 96 leaves nothing of the 96"),
        ({"valid": 0.001}, "data.valid = 0.001 of 96 images is none"),
        ({"limit": 0}, "limit: input should be greater than or equal to 1, not 0"),
        ({"workers": -1}, "workers = -1 must be a whole number"),
        ({"train": Lazy}, r"training data = Lazy is a class; make one: Lazy\(...\)"),
        ({"train": small_net()}, "training data must be a pair .*, not Sequential"),
        (
            {"train": lambda: None, "batch_size": None, "batches_per_epoch": 1},
            "a function that returned NoneType; it must return an iterable",
        ),
        (
            {"train": [toy_data()], "batch_size": None, "batches_per_epoch": 0},
            "batches_per_epoch: input should be greater than or equal to 1",
        ),
        ({"batches_per_epoch": 3}, "batches_per_epoch= is for iterables of batches; drop it"),
        ({"class_weights": [1, 2, 3]}, "has 3 weights and the model 4 classes"),
        ({"class_weights": "even"}, "class_weights: 'even' must be 'none', 'balanced' or a list"),
        ({"model": small_net}, "model must be an nn.Module, not function; call it in the forward"),
        ({"model": nn.Linear}, r"model = Linear is a class; make one: Linear\(...\)"),
        ({"model": [small_net()]}, "model must be an nn.Module, not list"),
        ({"model": nn.DataParallel(small_net())}, "model is a DataParallel; pass model.module"),
        ({"model": torch.compile(small_net())}, "model is compiled; pass the module itself"),
        ({"recipe": 3}, "recipe = 3 must be the name of a recipe"),
        ({"recipe": {"train": {"epochs": 1}}}, r"recipe recipe: \[threat\] needs the key norm"),
        ({"optim": torch.optim.SGD(small_net().parameters())}, "optim = SGD must be amata.SGD"),
        ({"model": nn.Sequential(nn.ReLU(inplace=True), small_net())}, "set inplace=False"),
        ({"model": inferred_net()}, r"was made in torch.inference_mode\(\)"),
        ({"method": Lazy(ball=BALL)}, r"Lazy.step\(\) never calls net.apply\(\)"),
        ({"method": Idle(ball=BALL)}, r"Idle does not update .*never calls net.backward\(\)"),
        ({"method": Averaging(ball=BALL)}, r"one value for each of 16 images, not the shape \(\)"),
        ({"method": Lossy(ball=BALL, loss=nothing)}, "must return a tensor, not NoneType"),
        ({"method": Averaging(ball=BALL, attack=True)}, "one value for each of 16 images"),
        ({"method": Lossy(ball=BALL, loss=constant)}, r"Lossy.step\(\) asks for a gradient that"),
        ({"method": Calling(ball=BALL)}, r"calls net like a model; net.logits\(x\) gives its"),
        ({"method": Backwards(ball=BALL)}, "at least 0 steps; not LinfRegion and -1"),
        ({"method": Boundless(ball=BALL)}, r"self.ball.around\(batch.x\).*; not Linf and 1"),
        ({"schedule": amata.Linear}, "must be a schedule such as amata.Linear"),
        ({"run": 7}, "run = 7 must be a folder"),
        ({"resume": 7}, "resume = 7 must be a folder"),
        ({"train": [toy_data(16)]}, "batch_size=, augment= and limit= are for single images"),
    ],
)
def test_wrong_arguments_are_one_line(change: dict[str, Any], message: str) -> None:
    given = {"model": small_net(), "train": toy_data(), **QUICK, **change}
    with pytest.raises(InputError, match=message) as error:
        amata.fit(**given)
    assert "\n" not in str(error.value)


def test_a_run_that_never_trained_leaves_no_folder(tmp_path: Path) -> None:
    for change in (
        {"valid_attack": "pgdd-10"},
        {"device": "gpu"},
        {"train": [(torch.ones(4, 1, 6, 6) * 2, torch.zeros(4).long())]},
    ):
        own = {k: v for k, v in QUICK.items() if k != "batch_size"}
        given = {"model": small_net(), "train": toy_data(), **own, **change}
        with pytest.raises(InputError):
            amata.fit(run=tmp_path / "run", **given)
        assert not (tmp_path / "run").exists()


def test_clean_training_needs_no_schedule_and_a_function_may_be_one() -> None:
    settings = {**QUICK, "epochs": 1, "device": torch.device("cpu")}
    clean = {k: v for k, v in settings.items() if k != "schedule"}
    clean["method"] = amata.ERM(ball=amata.Linf(0.05))
    assert amata.fit(small_net(), toy_data(), **clean).grad_evals == 96
    settings["schedule"] = lambda epoch, epochs: (2, 0.01)
    assert amata.fit(small_net(), toy_data(), **settings).grad_evals == 3 * 96


def test_a_run_records_what_was_used(tmp_path: Path) -> None:
    x, y = toy_data()
    fitted = amata.fit(small_net(), (x, y), toy_data(40), run=tmp_path / "run", **QUICK)
    run, recipe = RunFolder.open(tmp_path / "run")
    assert recipe.method == METHOD
    assert recipe.schedule == SCHEDULE
    tables = recipe.tables
    parameters = sum(p.numel() for p in small_net().parameters())
    assert tables["model"]["class_name"] == "torch.nn.modules.container.Sequential"
    assert tables["model"]["parameters"] == parameters
    data = {k: tables["data"][k] for k in ("name", "count", "shape", "classes", "valid")}
    wanted = {"name": "python", "count": 96, "shape": [1, 6, 6], "classes": 2, "valid": 40}
    assert data == wanted
    assert (tables["optim"]["lr"], tables["optim"]["ema"]) == (0.02, 0.9)
    assert run.finished
    assert run.epochs() == fitted.epochs
    brighter = (x + 1e-3).clamp(0, 1), y
    amata.fit(small_net(), brighter, run=tmp_path / "other", **QUICK)
    other = RunFolder.open(tmp_path / "other")[1]
    assert other.tables["data"]["sha256"] != tables["data"]["sha256"]


def test_numpy_arrays_and_loaders_train_alike(tmp_path: Path) -> None:
    x, y = toy_data()
    pairs = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 96, 16)]
    tensors = amata.fit(small_net(), (x, y), **QUICK)
    arrays = amata.fit(small_net(), (x.numpy(), y.numpy()), **QUICK)
    for a, b in zip(tensors.model.parameters(), arrays.model.parameters(), strict=True):
        assert torch.equal(a, b)
    own = {k: v for k, v in QUICK.items() if k != "batch_size"}
    amata.fit(small_net(), pairs, run=tmp_path / "run", **own)
    data = RunFolder.open(tmp_path / "run")[1].tables["data"]
    assert (data["name"], data["count"], data["sha256"]) == ("python", None, None)


def test_a_callers_inference_mode_changes_nothing() -> None:
    own = {k: v for k, v in QUICK.items() if k != "batch_size"} | {"epochs": 1}
    expected = amata.fit(small_net(), [toy_data(16)], toy_data(8), **own)
    model, memory = small_net(), small_net()
    with torch.inference_mode():
        x, y = (t.clone() for t in toy_data(16))
        found = amata.fit(model, [(x, y)], tuple(t.clone() for t in toy_data(8)), **own)
        amata.fit(memory, (x, y), **own)
    for a, b in zip(expected.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_recipe_fills_what_is_not_given_and_objects_replace_its_own() -> None:
    fitted = amata.fit(
        small_net(),
        toy_data(),
        recipe="mnist5k-amata",
        schedule=amata.Constant(steps=2, step_size=0.1),
        epochs=1,
        device="cpu",
        progress=False,
    )
    assert [row["steps"] for row in fitted.epochs] == [2]
    recipe = load("mnist5k-amata")
    changed = replace(recipe, schedule=amata.Constant(steps=2, step_size=0.1))
    table = {"name": "constant", "steps": 2, "step_size": 0.1, "sizes": []}
    assert changed.tables["schedule"] == table
    assert changed.fingerprint() != recipe.fingerprint()
    other = replace(recipe, method=amata.TRADES(ball=amata.L2(1.0)))
    assert other.tables["threat"] == {"norm": "l2", "eps": 1.0}
    assert replace(recipe, name="again").fingerprint() == recipe.fingerprint()


def test_an_optimiser_has_its_own_defaults_and_is_recorded_with_them() -> None:
    recipe = replace(load("mnist5k-pgd"), optim=amata.AdamW())
    assert recipe.tables["optim"]["name"] == "adamw"
    assert recipe.tables["optim"]["lr"] == 1e-3
    assert recipe.chosen["optim"]["name"] == "adamw"
    with pytest.raises(ValueError, match="lr"):
        amata.SGD(lr=-1)


def test_an_interrupted_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    data, held_out = toy_data(), toy_data(40)
    whole = amata.fit(small_net(), data, held_out, run=tmp_path / "whole" / "run", **QUICK)
    cut = {**QUICK, "progress": StopAt(1, 3)}
    with pytest.raises(
        amata.Interrupted, match=r"amata.fit\(model, train, valid, resume='.*/cut/run'"
    ):
        amata.fit(small_net(), data, held_out, run=tmp_path / "cut" / "run", **cut)
    resumed = amata.fit(
        small_net(seed=5), data, held_out, resume=tmp_path / "cut" / "run", progress=False
    )
    for name in ("last.safetensors", "model.safetensors"):
        assert (tmp_path / "cut" / "run" / name).read_bytes() == (
            tmp_path / "whole" / "run" / name
        ).read_bytes()
    rows = [[without_times(r) for r in fitted.epochs] for fitted in (whole, resumed)]
    assert rows[0] == rows[1]
    again = amata.fit(small_net(seed=6), data, resume=tmp_path / "cut" / "run", progress=False)
    assert again.best_epoch == whole.best_epoch
    for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


OWN = """
import amata
import torch
from dataclasses import dataclass

def size():
    return 0.5

class Base(amata.Method):
    @staticmethod
    def scale():
        return 1 * size()

@dataclass(frozen=True, kw_only=True)
class Own(Base):
    def step(self, net, batch, u, rng, memory):
        \"\"\"Trains on noise.\"\"\"
        noise = (batch.x + self.scale() * torch.rand_like(batch.x)).clamp(0, 1)
        net.backward(noise, batch.y)
        net.apply()
"""


@pytest.mark.parametrize(
    ("old", "new", "edited"),
    [
        ("0.5", "0.25", ["size"]),
        ("1 * size", "2 * size", ["Base"]),
        ("torch.rand_like", "torch.randn_like", ["Own"]),
        ("Trains on noise.", "Trains on random points.", []),
        ("net.apply()", "net.apply()  # once", []),
    ],
)
def test_edited_code_of_a_users_class_is_noted_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, edited: list[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "own_method.py"

    def method() -> Any:
        monkeypatch.delitem(sys.modules, "own_method", raising=False)
        return importlib.import_module("own_method").Own(ball=amata.Linf(0.1))

    file.write_text(OWN)
    settings = {**QUICK, "method": method(), "progress": StopAt(1, 3)}
    with pytest.raises(amata.Interrupted):
        amata.fit(small_net(), toy_data(), run=tmp_path / "run", **settings)
    for code, stop, names in ((OWN, (1, 4), []), (OWN.replace(old, new), (9, 9), edited)):
        file.write_text(code)
        listen = Notes()
        listen.batch = StopAt(*stop).batch  # type: ignore[method-assign]
        own = {"method": method(), "schedule": SCHEDULE}
        with contextlib.suppress(amata.Interrupted):
            amata.fit(small_net(), toy_data(), resume=tmp_path / "run", progress=listen, **own)
        assert len(RunFolder(tmp_path / "run").epochs()) == (1 if stop == (1, 4) else 3)
        notes = [note for note in listen.notes if "the code of" in note]
        assert [note.split()[3] for note in notes] == [f"own_method.{name}" for name in names]
    file.write_text(OWN.replace(old, new).replace("clamp(0, 1)", "clamp(0, 0.5)"))
    listen, own = Notes(), {"method": method(), "schedule": SCHEDULE}
    amata.fit(small_net(), toy_data(), resume=tmp_path / "run", progress=listen, **own)
    assert "finished already" in listen.notes[0]
    assert "its result is of the old code" in listen.notes[1]
    assert len(listen.notes) == 2
    (tmp_path / "run" / "env.json").unlink()
    listen = Notes()
    amata.fit(small_net(), toy_data(), resume=tmp_path / "run", progress=listen, **own)
    assert len(listen.notes) == 1


def test_it_is_told_if_nothing_is_known_of_the_images_of_a_run(tmp_path: Path) -> None:
    x, y = toy_data()
    given: dict[str, Any] = {
        "tensors": (x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=16),
        "others": toy_data(48),
    }
    runs, settings = {}, {k: v for k, v in QUICK.items() if k != "batch_size"}
    for name, data in given.items():
        amata.fit(small_net(), data, run=tmp_path / name, **settings)
        runs[name] = RunFolder.open(tmp_path / name)
    unknown = "it is not known whether the runs have the same training and test images"
    assert unknown in comparability_warnings([runs["tensors"], runs["loader"]])
    told = comparability_warnings([runs["tensors"], runs["others"]])
    assert "the runs have different training or test images" in told
    assert unknown not in told


def test_runs_of_edited_code_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = [tmp_path / name / "run" for name in ("before", "after")]
    for run in runs:
        amata.fit(small_net(), toy_data(), run=run, **QUICK)
    opened = [RunFolder.open(run) for run in runs]
    with pytest.raises(InputError, match="the same recipe with the same seed"):
        recipe_titles(opened)
    for run, code in zip(runs, ("1a", "2b"), strict=True):
        known = RunFolder(run).environments()[-1]
        write_record(run / "env.json", {**known, "code": {"mine.Own": code}, "earlier": []})
    assert recipe_titles(opened) == ["run (code.mine.Own=1a)", "run (code.mine.Own=2b)"]
    assert "the runs have different code of mine.Own" in comparability_warnings(opened)


def test_a_shuffled_loader_is_noted_when_a_run_is_resumed_within_an_epoch(tmp_path: Path) -> None:
    data = TensorDataset(torch.rand(64, 1, 6, 6), torch.arange(64) % 4)

    def notes(shuffle: bool, at: tuple[int, int]) -> list[str]:
        folder = tmp_path / f"{shuffle}-{at}"
        given = {k: QUICK[k] for k in ("method", "schedule", "optim", "epochs", "device")}
        loader = DataLoader(data, batch_size=16, shuffle=shuffle)
        with pytest.raises(amata.Interrupted):
            amata.fit(small_net(), loader, run=folder, progress=StopAt(*at), **given)
        listen = Notes()
        amata.fit(small_net(), loader, resume=folder, progress=listen)
        return [note for note in listen.notes if "some images come again" in note]

    assert [len(notes(True, at)) for at in ((1, 2), (1, 4))] == [1, 0]
    assert not notes(False, (1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": toy_data(80)}, r"data\.\w+ = .*; resume with the same"),
        ({"model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))}, r"model\.par"),
        ({"method": amata.PGD(ball=amata.Linf(0.1))}, r"threat\.eps = 0\.05, not 0\.1"),
        ({"epochs": 9}, r"train\.epochs = 3, not 9"),
        ({"valid": 0.25}, r"data\.valid = 0, not 24"),
        ({"run": "other"}, "drop run= and recipe="),
        ({"train": (0.9 * toy_data()[0], toy_data()[1])}, r"data\.sha256 = '\w+', not '"),
        ({"method": amata.TRADES(ball=BALL)}, r"method\.name = 'pgd', not 'trades'"),
        (
            {"model": nn.Sequential(*(net := list(small_net()))[:5], nn.Identity(), *net[5:])},
            r"^the checkpoint does not fit this model: '6.weight' is missing",
        ),
        ({"resume": Path(__file__)}, "test_python_runs.py is not a run folder"),
        ({"resume": Path(__file__).parent}, "tests is not a run folder"),
        ({"resume": "nowhere"}, "no run folder nowhere; pass"),
    ],
)
def test_a_resume_with_something_else_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    stopped = {**QUICK, "progress": StopAt(0, 2)}
    with pytest.raises(amata.Interrupted):
        amata.fit(small_net(), toy_data(), run=tmp_path / "run", **stopped)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    given = {"model": small_net(), "train": toy_data(), "resume": tmp_path / "run", **change}
    with pytest.raises(InputError, match=message) as error:
        amata.fit(**given, progress=False)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in before} == before, "changed by a refused resume"


def test_a_run_without_a_checkpoint_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    whole = amata.fit(small_net(), toy_data(), run=tmp_path / "whole", **QUICK)
    with pytest.raises(amata.Interrupted):
        amata.fit(
            small_net(), toy_data(), run=tmp_path / "run", **{**QUICK, "progress": StopAt(1, 2)}
        )
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        path.unlink()
    (tmp_path / "run" / "metrics.jsonl").unlink()  # as if it had ended within the first epoch
    resumed = amata.fit(
        small_net(), toy_data(), resume=tmp_path / "run", progress=(notes := Notes())
    )
    assert notes.notes == [
        "there is no checkpoint: training starts from the beginning",
        "the model has 4 outputs, and the training data have 2 classes: check its last layer",
    ]
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


@dataclass(frozen=True, kw_only=True)
class Noise(amata.Method):
    """A user-defined method, which no recipe can name."""

    strength: float = 1.0
    notes: tuple[None, ...] = (None,)

    def step(
        self,
        net: amata.Net,
        batch: amata.Batch,
        u: amata.Control,
        rng: torch.Generator,
        memory: amata.Memory,
    ) -> None:
        net.backward(self.ball.scaled(self.strength).around(batch.x).start(rng), batch.y)
        net.apply()


def halved(epoch: int, epochs: int) -> amata.Control:
    return amata.Control(1, 0.1 / (1 + epoch))


def test_user_defined_methods_and_schedules_are_recorded_and_needed_again(tmp_path: Path) -> None:
    own = {"method": Noise(ball=amata.Linf(0.05), strength=8 / 255), "schedule": halved}
    settings = {**QUICK, **own, "progress": StopAt(1, 2)}
    with pytest.raises(amata.Interrupted, match=r"valid, method=..., schedule=..., resume="):
        amata.fit(small_net(), toy_data(), run=tmp_path / "run", **settings)
    tables = RunFolder.open(tmp_path / "run")[1].tables
    assert tables["method"] == {
        "name": "python",
        "class": "tests.test_python_runs.Noise",
        "fields": {"strength": 8 / 255, "notes": "(None,)"},
    }
    assert tables["schedule"] == {
        "name": "python",
        "class": "tests.test_python_runs.halved",
        "controls": [[1, 0.1], [1, 0.05], [1, 0.1 / 3]],
    }
    changed = {**own, "schedule": lambda epoch, epochs: (5, 0.1)}
    with pytest.raises(InputError, match=r"schedule\.\w+ = .*; resume with the same"):
        amata.fit(small_net(), toy_data(), resume=tmp_path / "run", **changed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the Python object tests\.test_python_runs\.\w+, which"):
        amata.fit(small_net(), toy_data(), resume=tmp_path / "run", progress=False)
    fitted = amata.fit(
        small_net(),
        toy_data(),
        resume=tmp_path / "run",
        progress=False,
        **own,  # type: ignore[arg-type]
    )
    assert [row["step_size"] for row in fitted.epochs] == [0.1, 0.05, 0.1 / 3]


def test_commands_name_the_python_call_and_reports_work(
    tmp_path: Path, amata: Callable[..., Called]
) -> None:
    import amata as library

    for name, steps in (("one", 1), ("three", 3)):
        settings = {**QUICK, "schedule": library.Constant(steps=steps, step_size=0.1)}
        library.fit(small_net(), toy_data(), toy_data(40), run=tmp_path / name, **settings)
    run = tmp_path / "one"
    for command, call in (
        (("eval", run), "amata.evaluate"),
        (("export", run, "--to", "onnx", "--out", tmp_path / "out"), "amata.export"),
        (("train", "--resume", run), "amata.fit(model, train, valid, resume="),
        (("landscape", run, "--out", tmp_path / "out"), "amata.load("),
    ):
        called = amata(*command)
        assert called.code == 2
        assert called.err.count("\n") == 1
        assert call in called.err
    assert amata("report", run, tmp_path / "three", "--out", tmp_path / "page").code == 0
    compared = json.loads((tmp_path / "page" / "compare.json").read_text())
    assert compared["data"] == ["python"]
    assert len(compared["rows"]) == 2


@pytest.mark.slow
def test_a_trained_network_is_exported_from_python(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data = toy_data()
    fitted = amata.fit(small_net(), data, run=tmp_path / "run", **QUICK)
    amata.export.export(tmp_path / "run", "onnx", tmp_path / "out", model=fitted.model)
    assert json.loads((tmp_path / "out" / "model.json").read_text())["checked_on"] == 16


SCRIPT = """
import torch

import amata

ball = amata.Linf("8/255")
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
data = torch.rand(64, 1, 6, 6), torch.randint(2, (64,))
fitted = amata.fit(model, data, method=amata.PGD(ball=ball), epochs=1,
                   schedule=amata.Linear(k_min=1, k_max=3, tau="13/255"),
                   optim=amata.SGD(lr=0.1, ema=0.9))
x_adv: torch.Tensor = amata.attacks.pgd(fitted.model, *data, ball=ball, steps=3)
print(amata.evaluate(fitted.model, data, ball=ball, attacks=["clean"])["clean"].accuracy)
"""


@pytest.mark.slow
def test_mypy_sees_the_types_of_a_users_script(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(SCRIPT.replace("epochs=1", "epoch=1"))

    def checked(name: str) -> str:
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(ROOT / ".mypy_cache"),
        ]
        ran = subprocess.run([*command, name], cwd=tmp_path, capture_output=True, text=True)
        return ran.stdout

    assert "Success" in checked("mine.py")
    assert 'Unexpected keyword argument "epoch" for "fit"' in checked("wrong.py")


def test_attacks_start_from_fresh_noise(tmp_path: Path) -> None:
    x, y = toy_data(8)
    model = small_net().eval()

    def attack() -> Tensor:
        return amata.attacks.pgd(model, x, y, ball=amata.Linf(0.05), steps=0)

    torch.manual_seed(0)
    first, second = attack(), attack()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(attack(), first)


def test_train_runs_a_recipe_and_resumes_it(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "train": {"epochs": 1, "device": "cpu", "tensorboard": False, "valid_attack": "pgd-1"},
        "data": {"limit": 60, "valid": 0.5, "batch_size": 20},
        "model": {"name": "tests.conftest:dropout_net"},
        "eval": {"attacks": ["clean"], "limit": 20},
        "schedule": {"k_max": 2},
    }
    run = amata.train("mnist5k-amata", tmp_path / "run", progress=False, **tables)
    assert run.summary()["epochs"] == len(run.epochs()) == 1
    assert run.epochs()[0]["grad_evals"] == 60 * 3
    split = json.loads((run.path / "split.json").read_text())
    assert (split["train"], split["valid"]) == (60, 30)
    again = load("mnist5k-amata", **tables)
    tables["train"]["epochs"] = 2
    with pytest.raises(amata.Interrupted, match="amata train --resume"):
        amata.train(again, str(tmp_path / "cut"), progress=StopAt(1, 1), train={"epochs": 2})
    resumed = amata.train(resume=tmp_path / "cut", progress=False)
    whole = amata.train("mnist5k-amata", tmp_path / "whole", progress=False, **tables)
    assert [without_times(row) for row in resumed.epochs()] == [
        without_times(row) for row in whole.epochs()
    ]
    assert (
        RunFolder.open(resumed.path)[1].fingerprint() == RunFolder.open(whole.path)[1].fingerprint()
    )


def test_train_runs_and_resumes_a_recipe_with_own_objects(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "data": {"limit": 90, "valid": 30, "batch_size": 30},
        "train": {"epochs": 3, "tensorboard": False, "valid_attack": "pgd-1"},
        "eval": {"attacks": ["clean"], "limit": 50},
    }
    base = load("mnist5k-pgd", **tables)
    own = replace(base, method=Noise(ball=base.ball), schedule=halved)
    run = tmp_path / "cut"
    with pytest.raises(amata.Interrupted, match=r"resume with amata.train\(recipe, resume='.*cut'"):
        amata.train(own, run, progress=StopAt(1, 1), train={"seed": 4})
    for resume in (
        lambda: amata.train(resume=run),
        lambda: amata.fit(small_net(), toy_data(), resume=run),
    ):
        with pytest.raises(InputError, match=r"amata.train\(recipe, resume="):
            resume()
    stronger = replace(own, method=Noise(ball=base.ball, strength=0.5))
    with pytest.raises(InputError, match=r"method.fields = .*; resume with the same"):
        amata.train(stronger, resume=run)
    with pytest.raises(
        InputError, match=r"method of recipe mnist5k-pgd was made in Python; change"
    ):
        amata.train(own, tmp_path / "other", method={"strength": 0.5})
    with pytest.raises(InputError, match=r"made in Python, for Linf.*make it again for Linf"):
        amata.train(own, tmp_path / "other", threat={"eps": 0.1})
    resumed = amata.train(own, resume=run, progress=False)
    with pytest.raises(InputError, match=r"method.fields = .*; resume with the same"):
        amata.train(stronger, resume=run)
    known = resumed.environments()[-1]
    assert list(known["code"]) == [f"{__name__}.Noise", f"{__name__}.halved"]
    code = {**known["code"], f"{__name__}.halved": "that of before"}
    write_record(run / "env.json", {**known, "code": code, "earlier": []})
    listen = Notes()
    amata.train(own, resume=run, progress=listen)
    assert "finished already" in listen.notes[0]
    assert f"the code of {__name__}.halved has changed since" in listen.notes[1]
    whole = amata.train(own, tmp_path / "whole", progress=False, train={"seed": 4})
    assert [without_times(row) for row in resumed.epochs()] == [
        without_times(row) for row in whole.epochs()
    ]
    assert RunFolder.open(whole.path)[1].train.seed == 4
    plain = amata.train(base, tmp_path / "base", progress=False)
    titles = [row["recipe"] for row in compare_runs([plain, whole])["rows"]]
    assert titles == ["mnist5k-pgd (method.name=pgd)", "mnist5k-pgd (method.name=Noise)"]
    names = "Method tests.test_python_runs.Noise, schedule tests.test_python_runs.halved"
    written = card(Trained.of(whole.path), [])
    assert names in written
    assert "The settings of a training written in Python:" in written
    assert "for `amata train FILE.toml`" in card(Trained.of(plain.path), [])
    with pytest.raises(amata.Interrupted):
        amata.train(base, tmp_path / "plain", progress=StopAt(1, 1))
    with pytest.raises(InputError, match="needs no recipe to be resumed"):
        amata.train(own, resume=tmp_path / "plain")


def test_a_step_with_other_arguments_is_refused_where_it_is_defined() -> None:
    with pytest.raises(InputError, match=r"^Short.step\(self, net, batch\) must be step"):

        class Short(amata.Method):
            def step(self, net: Any, batch: Any) -> None:  # type: ignore[override]
                pass


def test_arguments_that_a_method_or_a_schedule_lacks_are_named() -> None:
    class Plain(amata.Method):
        gamma: float = 2.0

        def step(self, *_: Any) -> None:
            pass

    @dataclass(frozen=True, kw_only=True)
    class Own(Plain):
        def __init__(self, **given: Any) -> None:
            object.__setattr__(self, "ball", given["any"])

    calls: dict[str, Callable[[], Any]] = {
        r"^PGD has no argument 'steps'; steps are the schedule's": lambda: amata.PGD(
            ball=BALL,
            steps=10,  # type: ignore[call-arg]
        ),
        r"^Linear has no argument 'kmin'; did you mean 'k_min'\?": lambda: amata.Linear(
            kmin=2,  # type: ignore[call-arg]
            k_max=3,
            tau=1,
        ),
        r"^Plain has new fields \(gamma\): write @dataclass": lambda: Plain(ball=BALL),
    }
    for said, call in calls.items():
        with pytest.raises(InputError, match=said):
            call()
    assert Own(any=BALL).ball == BALL


def test_a_step_that_can_be_called_is_accepted() -> None:
    def adapted(step: Any) -> Any:
        @wraps(step)
        def wrapper(self: Any, net: Any, batch: Any, *_: Any) -> None:
            step(self, net, batch)

        return wrapper

    class Wrapped(amata.Method):
        @adapted
        def step(self, net: Any, batch: Any) -> None:
            net.backward(batch.x, batch.y)
            net.apply()

    class Static(amata.Method):
        @staticmethod
        def step(net: Any, batch: Any, *_: Any) -> None:
            net.backward(batch.x, batch.y)
            net.apply()

    for method in (Wrapped(ball=BALL), Static(ball=BALL)):
        fitted = amata.fit(small_net(), toy_data(), **{**QUICK, "epochs": 1, "method": method})
        assert fitted.epochs[0]["grad_evals"] == len(toy_data()[0])


def test_a_recipe_with_alternating_flips_trains_with_and_without_them(tmp_path: Path) -> None:
    recipe = load("mnist5k-amata", ["data.augment=flip", "data.flip=alternating"])
    loader, x = training_batches(toy_data(), recipe, torch.device("cpu")), toy_data()[0]
    first, second = (
        {
            int(i)
            for b in loader.epoch(e)
            for i, own in zip(b.ids, b.x, strict=True)
            if own.ne(x[i]).any()
        }
        for e in range(2)
    )
    assert first | second == set(range(len(x)))
    assert not first & second
    own = {k: v for k, v in QUICK.items() if k != "optim"}
    amata.fit(small_net(), toy_data(), recipe=recipe, augment="none", run=tmp_path / "run", **own)
    data = RunFolder.open(tmp_path / "run")[1].data
    assert (data.augment, data.flip) == ("none", "random")


def test_a_recipe_with_cutout_trains_with_and_without_it(tmp_path: Path) -> None:
    recipe, (x, _) = load("mnist5k-amata", ["data.cutout=0.5"]), toy_data()
    for batch in training_batches(toy_data(), recipe, torch.device("cpu")).epoch(0):
        assert all(own.ne(x[i]).any() for i, own in zip(batch.ids, batch.x, strict=True))
    own = {k: v for k, v in QUICK.items() if k != "optim"}
    amata.fit(small_net(), toy_data(), recipe=recipe, run=tmp_path / "with", **own)
    amata.fit(small_net(), toy_data(), recipe=recipe, augment="none", run=tmp_path / "out", **own)
    found = {run.name: RunFolder.open(run)[1].data.cutout for run in tmp_path.iterdir()}
    assert found == {"with": 0.5, "out": 0.0}


def test_settings_of_a_method_with_its_own_init_are_recorded_too() -> None:
    class Weighted(amata.Method):
        def __init__(self, weight: float) -> None:
            super().__init__(ball=BALL)
            vars(self).update(weight=weight, _seen=0, kept=torch.zeros(3))

        def step(self, *_: Any) -> None: ...

    assert describe_object(Weighted(3.0))["fields"] == {"weight": 3.0}


def test_any_value_of_a_field_can_be_written_and_read_back(tmp_path: Path) -> None:
    for value in (float("inf"), 2**80, list(range(200_000)), {"b", "a"}, [8 / 25500, "8/255"]):
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        given = {**QUICK, "method": Lossy(ball=BALL, loss=None, more=value)}
        amata.fit(small_net(), toy_data(), run=run, **given)
        written = RunFolder.open(run)[1].tables["method"]["fields"]["more"]
        assert written == describe_object(given["method"])["fields"]["more"]
        assert len(str(written)) < 100
        if isinstance(value, list | set) and len(value) == 2:
            assert written == sorted(value, key=str)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z


class Detached(Frozen):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x.detach())
        return z


@pytest.mark.parametrize("kind", [Frozen, Detached])
def test_a_model_without_gradients_is_named(kind: type[Frozen]) -> None:
    text = r"^the model.s output has no gradient; remove"
    # a method that takes no gradient of the images can train Detached
    methods = [amata.PGD(ball=BALL), Lossy(ball=BALL, loss=None)][: 2 if kind is Frozen else 1]
    for method in methods:
        with pytest.raises(InputError, match=text):
            amata.fit(kind(), toy_data(), **{**QUICK, "method": method})
    with pytest.raises(InputError, match=text):
        amata.audit(kind(), toy_data(), ball=BALL, attacks="clean,pgd-2")


def test_a_loss_that_ignores_the_logits_is_no_fault_of_the_model() -> None:
    x, y = toy_data()
    with pytest.raises(RuntimeError, match="does not require grad"):
        input_grad(small_net(), x, y, lambda z, y: torch.zeros(len(y)))


def test_images_that_require_gradients_are_images() -> None:
    x, y = toy_data()
    assert amata.fit(small_net(), (x.requires_grad_(), y), **QUICK).epochs


def test_logits_that_are_not_finite_are_no_fault_of_the_learning_rate() -> None:
    class Broken(Frozen):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 0

    with pytest.raises(InputError, match=r"logits are NaN or infinite on its first images"):
        amata.fit(Broken(), toy_data(), **QUICK)


def test_a_logit_of_minus_infinity_excludes_a_class() -> None:
    class Masked(Frozen):
        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.net(x)
            return torch.cat([z, torch.full_like(z[:, :1], -torch.inf)], 1)

    assert amata.fit(Masked(), toy_data(), **QUICK).epochs


def test_a_description_is_the_same_in_every_process() -> None:
    @dataclass(frozen=True)
    class Late:
        curve: Any
        other: Any

    found = describe_object(Late(halved, object()))["fields"]
    assert found == {"curve": "tests.test_python_runs.halved", "other": "<object object>"}


def test_compare_trains_own_methods_beside_built_in_ones_and_resumes(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "data": {"limit": 90, "valid": 30, "batch_size": 30},
        "train": {"tensorboard": False, "valid_attack": "pgd-1"},
        "eval": {"attacks": ["clean", "pgd-2"], "limit": 50},
    }
    base = load("mnist5k-pgd", epochs=2)
    own = replace(base, name="noise", method=Noise(ball=base.ball), schedule=halved)
    given: list[Any] = ["mnist5k-pgd", own]

    def compare(out: str, progress: Any = False) -> amata.Comparison:
        return amata.compare(given, tmp_path / out, seeds=2, epochs=2, progress=progress, **tables)

    with pytest.raises(amata.Interrupted, match="interrupted in mnist5k-pgd-seed0"):
        compare("cut", StopAt(1, 1))
    with pytest.raises(amata.Interrupted, match="interrupted in noise-seed0"):
        compare("cut", StopAt(1, 1))
    resumed, whole = compare("cut"), compare("whole")
    assert [run.path.name for run in resumed.runs] == [
        f"{name}-seed{seed}" for seed in (0, 1) for name in ("mnist5k-pgd", "noise")
    ]
    assert [row["recipe"] for row in whole.rows] == ["mnist5k-pgd", "noise"]
    for one, other in zip(resumed.runs, whole.runs, strict=True):
        assert [without_times(row) for row in one.epochs()] == [
            without_times(row) for row in other.epochs()
        ]
    assert (resumed.path / "report.html").is_file()
    gap = r"noise: [+−]?[\d.]+ points from mnist5k-pgd under pgd-2 \(.*\), with [\d.]+ times its"
    assert re.search(gap, str(whole))
    assert "tests.test_python_runs.Noise" in (whole.path / "differences.md").read_text()
    changed = replace(own, method=Noise(ball=base.ball, strength=0.5))
    with pytest.raises(InputError, match=r"of recipe noise, with method.fields = .*strength"):
        amata.compare(
            ["mnist5k-pgd", changed], whole.path, seeds=2, epochs=2, progress=False, **tables
        )


def test_a_comparison_says_that_its_baseline_failed(tmp_path: Path) -> None:
    base = load("mnist5k-pgd")
    failing = replace(base, name="failing", method=Lossy(ball=base.ball, loss=not_a_number))
    compared = amata.compare(
        [failing, "mnist5k-pgd"],
        tmp_path / "out",
        epochs=1,
        progress=False,
        data={"limit": 60, "valid": 30, "batch_size": 30},
        train={"tensorboard": False, "valid_attack": "pgd-1"},
        eval={"attacks": ["clean"], "limit": 20},
    )
    assert [row["recipe"] for row in compared.rows] == ["mnist5k-pgd"]
    assert "failing failed, so another recipe is the baseline" in str(compared)


@pytest.mark.parametrize(
    ("recipes", "given", "message"),
    [
        ("mnist5k-pgd", {}, "pass a list of recipes, the baseline first"),
        (load("mnist5k-pgd"), {}, "pass a list of recipes, the baseline first"),
        ([], {}, "the list of recipes is empty"),
        (["mnist5k-pgd"], {"out": 3}, "out = 3 must be a folder"),
        (["mnist5k-pgd"], {"seeds": 0}, "seeds = 0 must be a whole number of at least 1"),
        (["mnist5k-pgd"], {"target": "2"}, "must be an accuracy between 0 and 1"),
        (["mnist5k-pgd"], {"out": ""}, "out = '' must be a folder"),
        ([load("mnist5k-pgd", name="../evil")], {}, "'../evil' cannot be the name of a folder"),
        ([load("mnist5k-pgd", name="x" * 300)], {}, "too long for the name of a folder"),
        ([replace(load("mnist5k-pgd"), name=cast(Any, 3))], {}, "recipe name 3 cannot be the name"),
        (
            [replace(load("mnist5k-pgd"), method=cast(Any, halved))],
            {},
            "must be a method, as amata.PGD",
        ),
        (
            [load("mnist5k-pgd", {"schedule": {"name": "python", "class": "mine.late"}})],
            {},
            "recorded with the Python object mine.late",
        ),
        (["mnist5k-pgd"], {"limit": 10}, r"write data=.'limit': ...."),
        (["mnist5k-pgd", "mnist5k-pgd"], {}, r"two recipes are named .*load\(recipe, name="),
        (["mnist5k-pgd", "cifar10-pgd10"], {}, r"differ in \[threat\] or \[data\]"),
    ],
)
def test_wrong_arguments_of_compare_are_one_line_and_leave_nothing(
    recipes: Any, given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        amata.compare(recipes, **{"out": tmp_path / "a" / "b", "progress": False, **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "pass either a recipe or resume="),
        ({"recipe": "mnist5k-amata"}, "out= is needed"),
        ({"recipe": "mnist5k-amata", "out": 3}, "out = 3 must be a folder"),
        ({"resume": "a", "out": "b"}, "takes settings and folder from the run"),
        ({"resume": "a", "train": {"epochs": 1}}, "takes settings and folder from the run"),
        ({"recipe": "mnist5k-amata", "out": "x", "optim": {"lrr": 1}}, "optim.lrr: unknown key"),
        ({"resume": "a", "epochs": 1}, "takes settings and folder from the run"),
        ({"recipe": "mnist5k-amata", "out": "x", "epochs": 0}, "epochs = 0 must be"),
        ({"recipe": "mnist5k-amata", "out": "x", "epochs": 1, "within": 9}, "drop --epochs"),
        ({"recipe": "mnist5k-amata", "out": "x", "epoch": 1}, "unknown table 'epoch'"),
        ({"recipe": "mnist5k-amata", "out": "x", "seed": 1}, r"write train=.'seed': ...."),
        ({"recipe": "mnist5k-amata", "resume": "x"}, "takes the recipe from the run; drop yours"),
        (
            {"recipe": "mnist5k-amata", "out": "x", "progress": 3},
            r"train\(\): progress = 3 must be",
        ),
    ],
)
def test_wrong_arguments_of_train_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        amata.train(**given)
