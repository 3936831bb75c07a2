"""Successive approximations for a network: what the study chooses, keeps, resumes and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from rich.text import Text

from amata import recipes
from amata.console import err, msa_table
from amata.errors import AmataError, InputError
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.studies.msa import Msa, MsaSettings
from amata.studies.recorded_run import RecordedRun
from amata.studies.runs import train_or_resume
from amata.training.batches import training_batches
from amata.training.trainer import Trainer
from tests.conftest import Called, small_net
from tests.toy import QUICK, Notes, toy_data, toy_recipe

Amata = Callable[..., Called]
FAST = [*QUICK, "data.limit=160", "data.batch_size=60", "train.guard=ignore", "eval.limit=20"]
OPTIONS = ["--batches=1", "--order=2", "--iterations=2", "--json", *(f"--set={o}" for o in FAST)]


@pytest.mark.slow
def test_msa_stays_within_the_budget_keeps_the_best_and_resumes(
    amata: Amata, tmp_path: Path
) -> None:
    called = amata("msa", "mnist5k-amata", *OPTIONS, "--out", tmp_path / "a")
    assert called.code == 0, called.err
    result = json.loads(called.out)
    rows = result["runs"]
    assert rows[0]["steps"] == [2, 2, 3]  # the recipe's own schedule
    assert result["budget"] == pytest.approx(10 / 3)
    assert all(row["cost"] <= result["budget"] + 1e-9 for row in rows)
    assert [row["cost"] for row in rows] == pytest.approx([1 + fmean(row["steps"]) for row in rows])
    assert len({tuple(row["steps"]) for row in rows}) == len(rows) > 1
    kept = [row for row in rows if row["accepted"]]
    assert result["best"] == kept[-1] == min(rows, key=lambda row: row["held_out_loss"])
    # the winner is a recipe of the same training
    text = (tmp_path / "a" / "best.toml").read_text()
    assert "by amata msa\n" in text.splitlines(keepends=True)[0]
    best = recipes.load(tmp_path / "a" / "best.toml")
    own = recipes.load("mnist5k-amata", FAST)
    assert [best.schedule(e, 3).steps for e in range(3)] == result["best"]["steps"]  # type: ignore[operator]
    assert {k: t for k, t in best.tables.items() if k != "schedule"} == {
        k: t for k, t in own.tables.items() if k != "schedule"
    }
    # nothing is trained twice; what is lost is measured again, and is the same
    epochs = {f: f.stat().st_mtime_ns for f in tmp_path.glob("a/runs/*/epochs/*")}
    (tmp_path / "a" / "runs" / f"{rows[0]['key']}.gains.json").unlink()
    again = amata("msa", "mnist5k-amata", *OPTIONS, "--out", tmp_path / "a")
    assert json.loads(again.out) == result
    assert again.err.count("carrying the co-state back") == 1
    assert {f: f.stat().st_mtime_ns for f in tmp_path.glob("a/runs/*/epochs/*")} == epochs
    # other settings are another study
    other = amata("msa", "mnist5k-amata", *OPTIONS, "--block=2", "--out", tmp_path / "a")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds a study with a different block; use the same settings" in other.err


def test_the_terminal_cost_and_the_first_gains_are_of_the_recorded_run(tmp_path: Path) -> None:
    """At a price so high that one step is best, every epoch takes one."""
    recipe = recipes.load("mnist5k-amata", [*FAST, "train.epochs=2"])
    settings = MsaSettings(gamma=1e6, batches=1, order=2, block=2)
    study = Msa(recipe, settings, tmp_path, Notes())
    result = study.run(2)
    assert [row["steps"] for row in result["runs"]] == [[3, 3], [1, 1]]
    first = result["runs"][0]
    assert first["objective"] == pytest.approx(first["held_out_loss"] + 1e6 * 8)
    run = RunFolder(tmp_path / "runs" / first["key"])
    (attack,) = (row for row in run.epochs()[-1]["valid"] if row != "clean")
    assert attack == result["attack"]
    assert 0 <= first["held_out_accuracy"] <= 1
    record = json.loads((tmp_path / "runs" / f"{first['key']}.gains.json").read_text())
    assert [len(epoch) for epoch in record["gains"]] == [3, 3]  # K = 1, 2, 3
    assert all(len(batches) == 1 for epoch in record["gains"] for batches in epoch)


def test_a_schedule_that_starts_without_steps_is_its_own_first_run(tmp_path: Path) -> None:
    """K = 0 is a candidate then; fractions of K are rounded, which is noted."""
    own = ["schedule.k_min=0", "schedule.k_max=2", "schedule.fractional=true"]
    recipe, notes = recipes.load("mnist5k-amata", [*FAST, "train.epochs=2", *own]), Notes()
    study = Msa(recipe, MsaSettings(batches=1, order=1, block=1), tmp_path, notes)
    assert [u.steps for u in study.candidates] == [0, 1, 2]
    result = study.run(1)
    rows = result["runs"]
    assert rows[0]["steps"] == [0, 1]
    assert rows[0]["cost"] == pytest.approx(1.5)
    assert len(rows) == 2
    assert recipes.load(tmp_path / "best.toml").schedule(0, 2).steps == result["best"]["steps"][0]  # type: ignore[operator]
    assert not any("takes whole K" in note for note in notes.notes)
    halves = recipes.load("mnist5k-amata", [*FAST, *own])  # K = 0, 2/3 and 4/3
    Msa(halves, MsaSettings(batches=1, order=1), tmp_path / "other", notes).run(0)
    assert any("the first run takes whole K" in note for note in notes.notes)


@pytest.mark.parametrize(
    ("guard", "of_runs"), [("rollback", "stop"), ("stop", "stop"), ("ignore", "ignore")]
)
def test_the_guard_changes_no_controls_of_a_run(guard: str, of_runs: str, tmp_path: Path) -> None:
    """With more steps a run would exceed the budget, and its controls would not be those whose
    Hamiltonian is measured."""
    recipe = recipes.load("mnist5k-amata", [*FAST, f"train.guard={guard}"])
    study = Msa(recipe, MsaSettings(), tmp_path, Notes())
    assert study.recipe_of((0, 0, 0)).train.guard == of_runs


@pytest.mark.parametrize("batches", [1, 4])
def test_an_epoch_moves_by_the_learning_rates_of_its_batches(batches: int, tmp_path: Path) -> None:
    recipe = toy_recipe("optim.lr_schedule=one-cycle", "optim.momentum=0.5")
    loader = training_batches(toy_data(16 * batches), recipe, torch.device("cpu"))
    trainer = Trainer(small_net(), loader, recipe, torch.device("cpu"))
    splits: Any = None
    for epoch in range(2):
        trainer.state.epoch = epoch
        motion = RecordedRun(tmp_path, recipe, splits)._motion(small_net(), [], [], epoch, batches)
        assert motion.rate == pytest.approx(2 * sum(map(trainer.lr, range(batches))))


BAD: dict[str, tuple[str, list[str], MsaSettings, str]] = {
    "no held-out images": (
        "mnist5k-amata",
        ["data.valid=0"],
        MsaSettings(),
        "data.valid is 0; --set data.valid=500",
    ),
    "closed loop": ("mnist5k-adaptive", [], MsaSettings(), "chooses its own controls; start msa"),
    "warm-up": (
        "mnist5k-amata",
        ["train.eps_warmup=1"],
        MsaSettings(),
        "under one eps; --set train.eps_warmup=0",
    ),
    "annealed eps": (
        "mnist5k-amata",
        ["schedule.eps_start=0.5"],
        MsaSettings(),
        "anneals the radius or K .* without eps_start",
    ),
    "annealed reach": (
        "mnist5k-amata",
        ["schedule.tau_end=0.3"],
        MsaSettings(),
        "anneals the radius or K .* without eps_start",
    ),
    "early stops": ("mnist5k-amata-fat", [], MsaSettings(), "stop early.*use amata search"),
    "erm": ("mnist5k-amata", ["method.name=erm"], MsaSettings(), "costs the same for every K"),
    "budget": ("mnist5k-amata", [], MsaSettings(budget=1.5), "1.5 .* is below the 2 of K = 1"),
    "no steps": (
        "mnist5k-amata-fast",
        ["schedule.stages=[[0, 0]]"],
        MsaSettings(),
        "takes no steps",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_msa_cannot_do_is_refused_before_the_training(name: str, tmp_path: Path) -> None:
    recipe, overrides, settings, message = BAD[name]
    given = [o for o in FAST if not o.startswith("schedule")]
    with pytest.raises(InputError, match=message):
        Msa(recipes.load(recipe, [*given, *overrides]), settings, tmp_path, Notes())
    assert not any(tmp_path.iterdir())


def test_a_schedule_whose_training_fails_is_not_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list[str]()

    def train(folder: Path, recipe: Recipe, reporter: Reporter, name: str) -> RunFolder:
        names.append(name)
        if recipe.schedule(0, 1).steps == 1:  # type: ignore[operator]
            raise AmataError("catastrophic overfitting")
        return train_or_resume(folder, recipe, reporter, name)

    monkeypatch.setattr("amata.studies.msa.train_or_resume", train)
    recipe = recipes.load("mnist5k-amata", [*FAST, "train.epochs=1"])
    settings, notes = MsaSettings(gamma=1e6, batches=1, order=1), Notes()
    for _ in range(2):
        result = Msa(recipe, settings, tmp_path, notes).run(2)
        assert [row["held_out_loss"] is None for row in result["runs"]] == [False, True]
        assert result["best"]["steps"] == [2]
        assert "failed" in str(Text.assemble(*msa_table(result).__rich_console__(err, err.options)))
    assert sum("training failed" in note for note in notes.notes) == 1  # it is not repeated
    assert names == ["run 1 of 3", "run 2 of 3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 3.0, "gamma": 0.1}, "either --budget or --gamma"),
        ({"gamma": -1.0}, "gamma = -1 must not be negative"),
        ({"budget": 0.0}, "budget"),
        ({"batches": 0}, "batches"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MsaSettings(**options)


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": []}', '{"about": 1}'])
def test_a_damaged_study_is_one_line(text: str, amata: Amata, tmp_path: Path) -> None:
    (tmp_path / "msa.json").write_text(text)
    called = amata("msa", "mnist5k-amata", *OPTIONS, "--out", tmp_path)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert "choose another folder" in called.err
    assert not (tmp_path / "runs").exists()
