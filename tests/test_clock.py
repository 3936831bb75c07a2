"""What counts as training time, and the time that is left."""

import importlib.util
import math
import os
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from amata import recipes
from amata.batch import Batch
from amata.console import ConsoleReporter
from amata.data import feed
from amata.engine import PlainNet
from amata.errors import InputError
from amata.evaluation import evaluate
from amata.methods import Method
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.schedules import Control
from amata.training import clock, experiment, saver, train_model, wall
from amata.training.wall import PARTS, WallClock, process_age, slow_start
from tests.conftest import small_net
from tests.disk import Disk
from tests.toy import QUICK, fit, toy_data, toy_recipe


class Time:
    """Stands still, but for what a test adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (clock, feed, wall):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now


def test_training_time_counts_what_the_reporter_waits_for_and_not_the_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, saves = Time(monkeypatch), []

    class Slow(Reporter):
        def batch(self, info: BatchInfo) -> None:
            time.now += 2  # such as reading the loss off a busy device

    def save(*_: Any) -> None:
        saves.append(time.now)
        time.now += 30

    Disk(monkeypatch)
    monkeypatch.setattr(saver, "save_checkpoint", save)
    recipe = toy_recipe("train.epochs=1", "train.save_minutes=1e-9", "train.tensorboard=false")
    fitted = fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=Slow())
    assert len(saves) == 6
    assert fitted.train_seconds == 6 * 2


def test_time_left_follows_the_cost_of_the_epochs_to_come() -> None:
    infos: list[BatchInfo] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            infos.append(info)

    fit(small_net(), toy_data(), None, toy_recipe(), reporter=Watch())
    assert infos[-1].share == pytest.approx(1)
    first_epoch = [m for m in infos if m.epoch == 0][-1]
    assert first_epoch.share == pytest.approx(3 / 14)
    assert first_epoch.seconds_left is not None
    assert math.isclose(infos[-1].seconds_left or 0, 0, abs_tol=1e-9)


def test_time_spent_waiting_for_data_is_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)

    class Slow:
        """Three batches of data, each after two seconds."""

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            x, y = toy_data(48)
            for part in range(3):
                time.now += 2
                yield x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16]

    class Report(ConsoleReporter):
        def batch(self, info: BatchInfo) -> None:
            time.now += 1
            super().batch(info)

    recipe = toy_recipe("train.epochs=1")
    row = fit(small_net(), Slow(), None, recipe, reporter=Report()).epochs[0]
    assert (row["data_seconds"], row["train_seconds"]) == (6, 9)
    assert re.search(r"epoch   1 .* 67% waiting for data", capfd.readouterr().err)


class Slow(Reporter):
    """Each callback takes time, and so does each batch of data."""

    def __init__(self, time: Time) -> None:
        self.time, self.validated = time, 0

    def batch(self, info: BatchInfo) -> None:
        self.time.now += 2

    def evaluating(self, *_: Any) -> None:
        self.time.now += 1
        self.validated += 1

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = toy_data(48)
        for part in range(3):
            self.time.now += 3
            yield x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16]


def test_the_wall_clock_counts_every_second_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, saves = Time(monkeypatch), []

    def save(*_: Any) -> None:
        saves.append(time.now)
        time.now += 30

    Disk(monkeypatch)
    monkeypatch.setattr(saver, "save_checkpoint", save)
    slow, counted = Slow(time), WallClock(age=5)
    recipe = toy_recipe("train.epochs=2", "train.save_minutes=1e-9", "train.tensorboard=false")
    run = RunFolder.create(tmp_path / "run", recipe)
    fitted = train_model(
        small_net(), slow, toy_data(), recipe, run=run, reporter=slow, wall=counted
    )
    assert min(slow.validated, len(saves)) > 1
    waited, trained = 2 * 3 * 3, 2 * 3 * 2
    expected = {
        "start": 5,
        "data": waited,
        "train": trained,
        "valid": slow.validated,
        "save": 30 * len(saves),
    }
    assert fitted.summary(recipe, {}, counted)["wall_seconds"] == {
        **dict.fromkeys(PARTS, 0),
        **expected,
        "total": sum(expected.values()),
    }
    assert fitted.train_seconds == waited + trained, "waiting for data is part of the training time"


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_the_age_of_a_process_is_what_ps_says() -> None:
    before = process_age()
    command = ["ps", "-o", "etimes=", "-p", str(os.getpid())]
    age = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert before - 1.5 < age < process_age() + 1.5  # ps counts whole seconds


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_package_that_is_compiled_at_every_start_is_noted(
    compiled: bool, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told not to write bytecode, Python compiles it again unless it was compiled before."""
    file = tmp_path / "large.py"
    file.write_text("")
    spec = importlib.util.spec_from_file_location("large", file)
    assert spec is not None
    if compiled:
        py_compile.compile(str(file))
    monkeypatch.setattr(sys, "dont_write_bytecode", told)
    found = slow_start(importlib.util.module_from_spec(spec))
    assert (f"python -m compileall -q {tmp_path}" in found) == (told and not compiled)
    assert bool(found) == (told and not compiled)


def test_a_step_is_compiled_before_the_data_are_there_and_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.load("mnist5k-amata", [*QUICK, "train.epochs=1", "data.limit=300"])
    with monkeypatch.context() as patch:
        patch.setattr(experiment, "_prepared_trainer", lambda *_: None)
        plain = experiment.train(recipe, tmp_path / "plain")
    time, seen = Time(monkeypatch), []

    def warm_up(net: PlainNet, method: Method, batch: Batch, u: Control) -> None:
        seen.append((tuple(batch.x.shape), u.steps))
        torch.rand(1)
        time.now += 7
        net.compile_seconds += 7

    monkeypatch.setattr(PlainNet, "warm_up", warm_up, raising=False)
    early = experiment.train(recipe, tmp_path / "early")
    assert seen == [((100, 1, 28, 28), 2)]
    assert early.summary()["wall_seconds"]["compile"] == 7
    assert early.epochs()[0]["compile_seconds"] == 7
    assert early.epochs()[0]["train_seconds"] == 0
    weights = [(run.path / "last.safetensors").read_bytes() for run in (plain, early)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (["data.valid=4000", "model.name=lenett"], "data.valid = 4000 leaves nothing"),
        (["model.name=lenett"], "lenett"),
        (["data.name=cifar10", "data.root=/nowhere"], "nowhere"),
    ],
)
def test_errors_of_data_that_load_beside_come_first(
    broken: list[str], message: str, tmp_path: Path
) -> None:
    recipe = recipes.load("mnist5k-amata", [*QUICK, *broken])
    with pytest.raises(InputError, match=message):
        experiment.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_validation_shares_the_copy_that_the_final_evaluation_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines: list[str] = []

    def watched(*data: Any, engine: Any, **options: Any) -> Any:
        engines.append(engine)
        return evaluate(*data, engine=engine, **options)

    monkeypatch.setattr("amata.training.validation.evaluate", watched)
    settings = "train.epochs=1", "train.valid_attack=pgd-1", "train.guard=ignore"
    for more in ([], ["train.engine=plain"], ["eval.attacks=[]"]):
        fit(small_net(), toy_data(), toy_data(), toy_recipe(*settings, *more))
    assert engines == ["auto", "plain", "plain"]
