"""Comparisons of runs: numbers, resuming after a kill, tables and the HTML page."""

import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amata.cli import main
from amata.console import PlainConsole, comparison_table
from amata.data import DATASETS, Arrays, Splits
from amata.engine import worth
from amata.errors import InputError
from amata.evaluation import LEARNT_NOTHING, Result, pack, unpack, wilson
from amata.recipes import Recipe, load
from amata.report.captions import setting
from amata.report.comparison import _loss, comparison_figures, smooth
from amata.report.escape import for_csv, for_figure, for_html, for_markdown
from amata.report.figures import figure, to_svg
from amata.report.lead import about_lead, describe_attack, headline, lead_table
from amata.report.lines import spread
from amata.report.page import page
from amata.report.tables import as_csv, as_markdown, result_csv, result_table
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import write_json, write_record
from amata.runs.lock import hold
from amata.studies.compare import compare_runs
from amata.studies.compare_images import compare_images
from amata.studies.comparison_rows import common_target
from amata.studies.criterion import check_epochs, robust_attack
from amata.studies.differences import recipe_differences
from amata.studies.intervals import over_images, over_seeds_and_images
from amata.studies.landscape import run_landscapes
from amata.studies.plan import check_same_runs, find_runs, plan, run_name, run_plan
from amata.studies.runs import check_runs
from amata.studies.shared_attack import compare_under_one_attack, difference, paired_difference
from amata.studies.timing import timing_facts
from amata.training import fit
from amata.training.setup import load_data
from tests.conftest import ENV, ROOT, Called, images, labels, small_net

QUICK = [
    "train.device=cpu",
    "optim.name=sgd",
    "optim.lr=0.05",
    "train.epochs=3",
    "model.name=tests.conftest:dropout_net",
    "data.valid=40",
    "data.limit=1000",
    "data.batch_size=200",
    "train.valid_attack=pgd-2",
    'eval.attacks=["clean", "pgd-2"]',
    "eval.limit=100",
    "train.tensorboard=false",
]
SETS = [part for text in QUICK for part in ("--set", text)]
RECIPES = ("mnist5k-pgd2", "mnist5k-amata")
# Somebody may commit between two commands of a test.
WITHOUT_COMMIT = {**ENV, "GIT_DIR": os.devnull}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that ran without interruption."""
    out = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amata.runs.environment._commit", lambda: None)
        # Other work on the machine must not decide whether a speed-up is reported.
        patch.setattr("amata.studies.timing.LEAST_SECONDS", 1e9)
        with pytest.raises(SystemExit) as exit_:
            main(["compare", *RECIPES, "--seeds", "2", *SETS, "--out", str(out)])
    assert not exit_.value.code
    return out


def without_times(value: Any) -> Any:
    """The parts of a result that do not depend on the machine's speed."""
    if isinstance(value, dict):
        return {
            k: without_times(v)
            for k, v in value.items()
            if not re.search("seconds|speedup|time_to|times_comparable", k)
        }
    if isinstance(value, list):
        slow = "slowed by other work on the machine"
        return [without_times(v) for v in value if not (isinstance(v, str) and slow in v)]
    return value


def stopped(arguments: list[str], rows: Path, number: int) -> "subprocess.CompletedProcess[str]":
    """A command that gets a signal in the second epoch of a run."""
    when = [str(int(number)), "tests.death:is_written", str(rows)]
    command = [sys.executable, "-m", "tests.death", *when, *arguments]
    return subprocess.run(command, cwd=ROOT, env=WITHOUT_COMMIT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_comparison_that_was_interrupted_and_killed_resumes_to_the_same_report(
    compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    command = ["compare", *RECIPES, "--seeds", "2", *SETS, "--out", str(out)]
    rows = {name: out / "runs" / f"{name}-seed0" / "metrics.jsonl" for name in RECIPES}
    ended = stopped(command, rows["mnist5k-pgd2"], signal.SIGINT)
    assert ended.returncode == 130
    assert (
        "interrupted in mnist5k-pgd2-seed0; progress is saved, repeat the command to resume"
        in ended.stderr
    )
    ended = stopped(command, rows["mnist5k-amata"], signal.SIGKILL)
    assert ended.returncode == -signal.SIGKILL
    assert not (out / "compare.json").exists()
    again = [sys.executable, "-m", "amata", *command]
    subprocess.run(again, check=True, cwd=ROOT, env=WITHOUT_COMMIT, capture_output=True)
    found, expected = (
        json.loads((folder / "compare.json").read_text()) for folder in (out, compared)
    )
    assert without_times(found) == without_times(expected)
    assert (out / "report.html").is_file()


@pytest.mark.slow
def test_a_comparison_reports_the_numbers_of_its_runs(compared: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    assert result["order"] == [f"{recipe}-seed{seed}" for seed in (0, 1) for recipe in RECIPES]
    assert [row["recipe"] for row in result["rows"]] == list(RECIPES)
    for row in result["rows"]:
        summaries = [
            json.loads(
                (compared / "runs" / f"{row['recipe']}-seed{s}" / "summary.json").read_text()
            )
            for s in (0, 1)
        ]
        assert row["train_seconds"] == pytest.approx(sum(s["train_seconds"] for s in summaries) / 2)
        assert row["grad_evals"] == sum(s["grad_evals"] for s in summaries) / 2
        values = [s["evaluation"]["pgd-2"]["accuracy"] for s in summaries]
        found = row["accuracies"]["pgd-2"]
        assert found["accuracy"] == pytest.approx(sum(values) / 2)
        mean = sum(values) / 2
        over_seeds, over_images = (
            12.706 * abs(values[0] - values[1]) / 2,
            mean - wilson(round(100 * mean), 100)[0],
        )
        assert found["low"] == pytest.approx(max(0, mean - math.hypot(over_seeds, over_images)))
        assert (found["n"], found["split"]) == (100, "test")
    first, second = result["rows"]
    assert second["speedup"] == pytest.approx(first["train_seconds"] / second["train_seconds"])
    assert first["speedup"] == 1
    assert {d["key"] for d in result["differences"]} >= {"schedule.name"}
    assert not any(d["key"].startswith(("eval.", "threat.")) for d in result["differences"])


@pytest.mark.slow
def test_the_target_is_reached_when_an_epoch_first_reaches_it(compared: Path) -> None:
    runs, _ = find_runs([compared])
    assert [run.path.name for run in runs] == json.loads((compared / "compare.json").read_text())[
        "order"
    ]
    curve = compare_runs(runs)["curves"][0]
    values = [p["robust"] for p in curve["points"]]
    aim = sorted(values)[1]
    row = compare_runs(runs[:1], target=aim)["rows"][0]
    at = next(p for p in curve["points"] if p["robust"] >= aim)
    assert (row["time_to_target"], row["cost_to_target"]) == (at["train_seconds"], at["grad_evals"])
    missed = compare_runs(runs[:1], target=0.999)
    assert ("—", "1 of 1 missed it") in result_table(missed)[1]
    unreachable = missed["rows"][0]
    assert unreachable["time_to_target"] is None
    assert unreachable["epochs_to_target"] == [None]
    one = compare_runs(runs[:1])["rows"][0]["accuracies"]["clean"]
    assert (one["low"], one["high"]) == wilson(round(one["accuracy"] * 100), 100)


def test_bad_comparisons_are_refused(tmp_path: Path, amata: Any) -> None:
    with pytest.raises(InputError, match="cannot be compared"):
        plan(["mnist5k-amata", "cifar10-amata"], [], 1)
    with pytest.raises(InputError, match="are named"):
        plan(["mnist5k-amata", "mnist5k-amata"], [], 1)
    assert (
        "error: the target 45 must be an accuracy"
        in amata("report", _one_run(tmp_path), "--out", tmp_path / "r", "--target", "45").err
    )
    again = amata(
        "report",
        tmp_path / "one",
        tmp_path / "one" / "runs" / "mnist5k-pgd2-seed0",
        "--out",
        tmp_path / "r",
    )
    assert "same recipe with the same seed" in again.err
    assert (
        "neither a run folder nor a folder of runs"
        in amata("report", tmp_path, "--out", tmp_path / "r").err
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "plan.json").write_text('{"order": ["mnist5k-pgd2-seed0"]}')
    assert "holds no runs yet" in amata("report", begun, "--out", tmp_path / "r").err
    for damage in ("{", "[]"):
        (begun / "plan.json").write_text(damage)
        assert (
            "plan.json is damaged; delete it" in amata("report", begun, "--out", tmp_path / "r").err
        )
    (tmp_path / "one" / "runs" / "mnist5k-pgd2-seed0" / "env.json").unlink()
    assert "has no env.json" in amata("report", tmp_path / "one", "--out", tmp_path / "r").err


def test_a_plan_uses_the_first_recipes_conditions_seed_by_seed(tmp_path: Path) -> None:
    options = ["train.valid_every=2", "data.valid=7", 'eval.attacks=["clean"]', "optim.lr=0.3"]
    other = tmp_path / "other.toml"
    other.write_text(load("mnist5k-pgd2", options).to_toml())
    notes: list[str] = []
    planned = plan(["mnist5k-amata", str(other)], ["train.seed=3"], 2, notes.append)
    names = ("mnist5k-amata", "other")
    assert [(r.name, r.train.seed) for r in planned] == [(n, s) for s in (3, 4) for n in names]
    first, second = planned[:2]
    assert second.tables["eval"] == first.tables["eval"]
    assert second.train.valid_every == first.train.valid_every
    assert second.data.valid == first.data.valid
    assert second.optim.lr == 0.3
    assert [note.partition(" is set to ")[0] for note in notes] == [
        f"other: {key}" for key in ("data.valid", "train.valid_every", "eval.attacks")
    ]
    keys = {d["key"] for d in recipe_differences({r.name: r for r in (first, planned[3])})}
    assert {"optim.lr", "schedule.name"} <= keys
    assert "train.seed" not in keys


def test_times_are_comparable_on_one_machine_with_the_same_packages() -> None:
    facts = {"device": "cpu", "machine": "arm", "threads": 2, "packages": {"torch": "2"}}
    assert timing_facts({**facts, "commit": "a"}) == timing_facts({**facts, "commit": "b"})
    for key in facts:
        assert timing_facts({**facts, key: "other"}) != timing_facts(facts)


def test_the_common_target_is_the_highest_percentage_that_all_runs_reached() -> None:
    def curve(run: str, *robust: float | None) -> dict[str, Any]:
        return {"run": run, "points": [{"robust": r} for r in robust]}

    assert common_target([curve("a", 0.2, 0.459, 0.3), curve("b", None, 0.62)]) == (0.45, None)
    target, reason = common_target([curve("a", 0.6), curve("b", 0.29), curve("c", 0.6)])
    assert target is None
    assert reason is not None
    assert reason.startswith("b never exceeded 29%")
    assert common_target([curve("a", 0.6), curve("b", 0.31), curve("c", 0.6)]) == (0.31, None)
    assert common_target([curve("a", 0.6), curve("b", None)]) == (None, None)


def _one_run(folder: Path) -> Path:
    run_plan(
        plan(["mnist5k-pgd2"], [*QUICK, "train.epochs=1", "eval.limit=10"], 1),
        folder / "one",
        Reporter(),
    )
    return folder / "one" / "runs" / "mnist5k-pgd2-seed0"


def test_the_report_shows_the_same_images_for_every_recipe(compared: Path, tmp_path: Path) -> None:
    text = (compared / "report.html").read_text()
    _, _, rest = text.partition("<h2>Images</h2>")
    rows = [row.partition("</tr>")[0] for row in rest.split("<tr ")[1:4]]
    assert [name in row for name, row in zip(("clean", *RECIPES), rows, strict=True)] == [True] * 3
    pictures = [re.findall(r'base64,([^"]+)"', row) for row in rows]
    assert [len(row) for row in pictures] == [8, 8, 8]
    assert not set(pictures[0]) & set(pictures[1]), "attacked"
    assert not set(pictures[1]) & set(pictures[2]), "each recipe has its own attack"
    # without weights there is a note, and a report
    run = Path(shutil.copytree(next((compared / "runs").iterdir()), tmp_path / "run"))
    (run / "model.safetensors").unlink()
    notes: list[str] = []
    assert compare_images([RunFolder(run)], ["one"], notes.append) is None
    assert "the report has no images: " in notes[0]


# Runs that nobody trained: their small files are enough for a report

ENVIRONMENT = {
    "python": "3.12.0",
    "platform": "Linux",
    "machine": "x86_64",
    "packages": {"torch": "2"},
    "device": "cpu",
    "threads": 1,
    "commit": None,
}


def written_run(
    folder: Path,
    recipe: Recipe,
    start: float | None = 1000.0,
    seconds: tuple[float, float] = (10.0, 10.0),
    evals: int = 1000,
    split: dict[str, str] | None = None,
) -> RunFolder:
    """A finished run of two epochs that took so many seconds and gradient evaluations, which
    trained from `start`."""
    run = RunFolder.create(folder, recipe)
    write_json(folder / "env.json", ENVIRONMENT)
    if split:
        write_json(folder / "split.json", split)
    for epoch in range(2):
        row: Any = {
            "epoch": epoch,
            "steps": 2,
            "step_size": 0.1,
            "loss": 1.0,
            "train_seconds": sum(seconds[: epoch + 1]),
            "data_seconds": 0.0,
            "grad_evals": evals * (epoch + 1),
            "grad_evals_per_image": 2.0,
            "lr": 0.1,
            "valid": {"clean": 0.9, "pgd-2": 0.5 + 0.1 * epoch},
            "valid_n": 40,
        }
        if start is not None:
            row["unix_seconds"] = start + row["train_seconds"]
        run.append_row(row)
    evaluation = {
        name: asdict(Result(0.6, 100, 0.5, 0.7, 0, 1.0, params))
        for name, params in (("clean", {}), ("pgd-2", {"eps": 0.2}))
    }
    summary = {
        "recipe": recipe.name,
        "epochs": 2,
        "train_seconds": sum(seconds),
        "grad_evals": 2 * evals,
        "grad_evals_per_image": 2.0,
        "best_epoch": 1,
        "evaluation": evaluation,
    }
    write_json(folder / "summary.json", summary)
    return run


def named(recipe: str, name: str, seed: int = 0) -> Recipe:
    return replace(load(recipe, [*QUICK, f"train.seed={seed}"]), name=name)


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A finished comparison of two recipes with two seeds."""
    out = tmp_path / "comparison"
    planned = plan(RECIPES, QUICK, 2)
    for index, recipe in enumerate(planned):
        written_run(out / "runs" / run_name(recipe), recipe, 100.0 * index)
    write_json(out / "plan.json", {"order": list(map(run_name, planned)), "target": None})
    return out


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


REFUSED = {
    "fewer recipes": (["mnist5k-pgd2", "--seeds", "2"], "with other runs (mnist5k-amata-seed0, "),
    "fewer seeds": ([*RECIPES, "--seeds", "1"], "with other runs (mnist5k-pgd2-seed1, "),
    "other recipes": (["mnist5k-pgd", "--seeds", "2"], "with other runs ("),
    "another version": (
        [*RECIPES, "--seeds", "2", "--set", "optim.lr=0.06"],
        "holds another version of recipe mnist5k-pgd2, with ",
    ),
    "a third recipe that cannot train": (
        [*RECIPES, "THIRD", "--seeds", "2"],
        "unknown model.args key",
    ),
    "the same recipe twice": (
        [*RECIPES, "COPY", "--seeds", "2"],
        "mnist5k-pgd2 and copy are the same recipe; pass only one",
    ),
    "no such device": (
        [*RECIPES, "--seeds", "3", "--set", "train.device=cuda:99"],
        "train.device = 'cuda:99'",
    ),
    "a process that compares": ([*RECIPES, "--seeds", "2"], "another process is comparing recipes"),
    "target": ([*RECIPES, "--seeds", "2", "--target", "45"], "must be an accuracy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_comparison_that_is_refused_changes_nothing(
    name: str, comparison: Path, tmp_path: Path, amata: Callable[..., Called]
) -> None:
    arguments, message = REFUSED[name]
    third = tmp_path / "third.toml"
    third.write_text(load("mnist5k-pgd", [*QUICK, "model.args={bogus=1}"]).to_toml())
    copy = tmp_path / "copy.toml"
    copy.write_text(load("mnist5k-pgd2").to_toml())
    before = contents(comparison)
    lock = hold(comparison, "comparing recipes") if "process" in name else nullcontext()
    with lock:
        files = {"THIRD": str(third), "COPY": str(copy)}
        words = [files.get(word, word) for word in arguments]
        called = amata("compare", *SETS, *words, "--out", comparison)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert message in called.err
    assert contents(comparison) == before


def test_a_report_replaces_only_a_report_of_the_same_runs(
    comparison: Path, tmp_path: Path, amata: Callable[..., Called]
) -> None:
    out = tmp_path / "report"
    out.mkdir()
    write_json(out / "compare.json", {"order": ["mnist5k-pgd2-seed0"]})
    before = contents(out)
    other = amata("report", comparison / "runs" / "mnist5k-amata-seed0", "--out", out)
    assert (other.code, contents(out)) == (2, before)
    assert "holds a comparison with other runs (mnist5k-pgd2-seed0); choose" in other.err
    check_same_runs(out, ["mnist5k-pgd2-seed0", "another"])  # more runs may join
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "results.csv").write_text("precious")
    called = amata("report", comparison, "--out", mine)
    assert (called.code, "results.csv exists already; choose" in called.err) == (2, True)
    assert contents(mine) == {"results.csv": b"precious"}


@pytest.mark.parametrize(
    ("starts", "trained", "comparable"),
    [
        ((100.0, 120.0, 200.0), "sequential", True),
        ((200.0, 100.0, 150.0), "sequential", True),
        ((100.0, 300.0, 105.0), "parallel", False),
        ((100.0, None, 105.0), "unknown", True),
    ],
)
def test_runs_that_trained_at_the_same_time_do_not_claim_comparable_times(
    starts: tuple[float | None, ...], trained: str, comparable: bool, tmp_path: Path
) -> None:
    runs = [
        written_run(tmp_path / f"run{i}", named(RECIPES[i % 2], f"recipe{i}"), start)
        for i, start in enumerate(starts)
        if i < 2
    ]
    runs.append(written_run(tmp_path / "run2", load("mnist5k-pgd", QUICK), starts[2]))
    result = compare_runs(runs)
    assert (result["trained"], result["times_comparable"]) == (trained, comparable)
    warning = "run0 and run2 trained at the same time and may have slowed each other"
    assert any(w.startswith(warning) for w in result["warnings"]) == (trained == "parallel")
    words = {"sequential": "one after the other", "parallel": "some at the same time"}
    assert words.get(trained, "not recorded") in setting(result)
    assert ("training (s)" in lead_table(result)[0]) == comparable
    assert {row["times_comparable"] for row in result["rows"]} == {comparable}
    assert all((row["speedup"] is not None) == comparable for row in result["rows"])
    caption = comparison_table(result).caption
    assert caption.endswith("seconds are not comparable") == (not comparable)
    two = compare_runs(runs[:2])
    assert ("times the training time" in headline(two)) == two["times_comparable"]


@pytest.mark.parametrize(
    ("seconds", "evals", "slowed"),
    [
        ((10.0, 10.0), 1000, None),
        ((12.0, 13.0), 1000, None),
        ((14.0, 30.0), 1000, "44 s where 20 s"),
        ((10.0, 30.0), 1000, "40 s where 20 s"),
        ((14.0, 30.0), 2000, "44 s where 28 s"),  # equal epochs of its own
        ((20.0, 25.0), 2000, None),
        ((30.0, 30.0), 2000, "60 s where 40 s"),  # twice the work, at most twice the time
        ((9.0, 9.0), 500, None),  # updates cost the same
        ((14.0, 14.0), 500, "28 s where 20 s"),  # less work, no more time
    ],
)
def test_a_run_that_was_slowed_does_not_claim_a_speed_up(
    seconds: tuple[float, float], evals: int, slowed: str | None, tmp_path: Path
) -> None:
    runs = [
        written_run(tmp_path / "quiet", load("mnist5k-pgd", QUICK)),
        written_run(tmp_path / "other", load("mnist5k-amata", QUICK), 2000.0, seconds, evals),
    ]

    result = compare_runs(runs)

    words = f"other seems to have been slowed by other work on the machine: it trained for {slowed}"
    assert any(w.startswith(words) for w in result["warnings"]) == (slowed is not None)
    assert result["times_comparable"] == (slowed is None)


@pytest.mark.parametrize(("failed", "left"), [(0, ()), (1, (0, 2)), (2, (0, 1))])
def test_a_model_that_learnt_nothing_has_no_speed_up(
    failed: int, left: tuple[int, ...], tmp_path: Path
) -> None:
    runs = [
        written_run(tmp_path / f"run{i}", load("mnist5k-pgd", [*QUICK, f"schedule.steps={i}"]), at)
        for i, at in enumerate((1000.0, 2000.0, 3000.0), 1)
    ]
    summary = runs[failed].summary()
    summary["evaluation"]["clean"]["warnings"] = [LEARNT_NOTHING]
    write_record(runs[failed].path / "summary.json", summary)
    result = compare_runs(runs)
    assert result["times_comparable"]
    for key in ("speedup", "speedup_to_target"):
        known = tuple(i for i, row in enumerate(result["rows"]) if row[key] is not None)
        assert known == left


def test_epochs_of_other_work_do_not_count_as_slow(tmp_path: Path) -> None:
    wide = load("mnist5k-pgd", [*QUICK, "data.batch_size=8"])
    first = written_run(tmp_path / "quiet", load("mnist5k-pgd", QUICK))
    second = written_run(tmp_path / "other", wide, 2000.0, (30.0, 30.0))
    assert compare_runs([first, second])["times_comparable"]


def test_of_several_slow_runs_the_slowest_is_named(tmp_path: Path) -> None:
    seconds = {"quiet": 10.0, "slow": 20.0, "slower": 30.0}
    runs = [
        written_run(tmp_path / name, named("mnist5k-pgd", "r", i), 1000.0 * i, (took, took))
        for i, (name, took) in enumerate(seconds.items())
    ]
    told = [w for w in compare_runs(runs)["warnings"] if "slowed" in w]
    assert [w.partition(",")[0] for w in told] == [
        "slower seems to have been slowed by other work on the machine"
    ]
    assert ", and 1 more too: it trained for 60 s where 20 s would do" in told[0]


def test_a_run_records_when_its_epochs_ended(tmp_path: Path) -> None:
    before = time.time()
    run = RunFolder.open(python_run(tmp_path / "run", 1, {}))[0]
    ends = [row["unix_seconds"] for row in run.epochs()]  # rounded to a millisecond
    assert before - 0.001 < ends[0] <= ends[1] <= ends[2] < time.time() + 0.001


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ({"test_hash": "a"}, {"test_hash": "b"}, "test images"),
        ({"train_hash": "a", "test_hash": "c"}, {"train_hash": "b"}, "training images"),
        (
            {"test_hash": "c", "test_pixels": "a"},
            {"test_pixels": "b"},
            "pixels in their test images",
        ),
        ({"train_pixels": "a"}, {"train_pixels": "b"}, "pixels in their training images"),
        ({"train_hash": "a", "test_hash": "c"}, {"test_hash": "c"}, None),
        ({"test_hash": "a"}, {}, None),
    ],
)
def test_runs_on_different_data_are_refused(
    first: dict[str, str], second: dict[str, str], what: str | None, tmp_path: Path
) -> None:
    runs = [
        written_run(tmp_path / "one", load(RECIPES[0], QUICK), 0.0, split=first),
        written_run(tmp_path / "two", load(RECIPES[1], QUICK), 50.0, split=second),
    ]
    if what is None:
        assert compare_runs(runs)["rows"]
        return
    with pytest.raises(InputError, match=rf"one and \S+two have different {what}, so they cannot"):
        compare_runs(runs)


def test_a_comparison_refuses_data_that_changed_before_it_trains(
    comparison: Path, amata: Callable[..., Called]
) -> None:
    write_json(comparison / "runs" / "mnist5k-pgd2-seed0" / "split.json", {"test_hash": "old"})
    before = contents(comparison)
    called = amata("compare", *RECIPES, *SETS, "--seeds", "3", "--out", comparison)
    assert (called.code, contents(comparison)) == (2, before)
    assert "mnist5k-pgd2-seed0 was trained on other images than there are now" in called.err


def test_recipes_on_the_same_images_are_checked_with_one_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(recipe: Recipe) -> Splits:
        read.append(recipe.name)
        return load_data(recipe)

    monkeypatch.setattr("amata.studies.runs.load_data", reading)
    planned = [named(RECIPES[0], name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    check_runs([(tmp_path / recipe.name, recipe) for recipe in planned])
    assert read == ["a", "c"], "another seed splits off other images"


def test_the_runs_of_a_comparison_share_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    entry = DATASETS["mnist5k"]

    def reading(root: Path) -> tuple[Arrays, Arrays]:
        assert entry.loader is not None
        read.append(root)
        return entry.loader(root)

    def training(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
        splits.append(load_data(recipe))
        shared.append(worth._runs)
        return RunFolder(folder)

    splits: list[Splits] = []
    shared: list[int] = []
    monkeypatch.setitem(DATASETS, "mnist5k", replace(entry, loader=reading))
    monkeypatch.setattr("amata.studies.plan.train_or_resume", training)
    run_plan(plan(RECIPES, QUICK, 2), tmp_path, Reporter())
    assert (len(splits), len(read)) == (4, 1)
    assert (shared, worth._runs) == ([4] * 4, 1), "what is compiled serves all runs of the study"
    assert splits[0].held_out == splits[1].held_out != splits[2].held_out
    alone = load_data(plan(RECIPES, QUICK, 2)[2])
    assert (alone.record(), len(read)) == (splits[2].record(), 2), "a study's images end with it"


DAMAGES = [
    ("plan.json", "{", "plan.json is damaged; delete it"),
    ("plan.json", "[]", "plan.json is damaged; delete it"),
    ("plan.json", '{"order": ["../comparison"]}', "plan.json is damaged; delete it"),
    ("plan.json", '{"order": "abc"}', "plan.json is damaged; delete it"),
    ("plan.json", '{"order": [], "target": "much"}', "plan.json is damaged; delete it"),
    ("plan.json", "[" * 100_000, "plan.json is damaged; delete it"),
    ("plan.json", "\udcff", "plan.json is damaged; delete it"),
    ("criterion.json", "", "; delete it, or repeat `amata criterion`"),
    ("criterion.json", '{"strategies": [{"strategy": 1}]}', "criterion.json is damaged"),
    ("runs/mnist5k-pgd2-seed0/env.json", "{}", "env.json is damaged"),
    ("runs/mnist5k-pgd2-seed0/split.json", "7", "split.json is damaged"),
    ("compare.json", "{", "compare.json is damaged; delete it"),
    ("compare.json", '{"order": 7}', "compare.json is damaged; delete it"),
]


def test_figures_are_not_drawn_through_a_link(
    comparison: Path, tmp_path: Path, amata: Callable[..., Called]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (comparison / "figures").symlink_to(tmp_path / "elsewhere")
    before = contents(comparison)
    called = amata("report", comparison, "--out", comparison)
    assert (called.code, contents(comparison)) == (2, before)
    assert "figures is a symbolic link" in called.err


EVENT = {"event": "chance-collapse", "action": "rollback", "epoch": 0, "before": 0.5, "after": 0.1}


def hostile_evaluation(**values: Any) -> dict[str, Any]:
    return {"evaluation": {"pgd-x": {**RESULT, **values}}}


RESULT = {
    "accuracy": 0.5, "n": 10, "low": 0.4, "high": 0.6, "grad_evals": 0, "seconds": 0.0,
    "params": {}, "warnings": [],
}  # fmt: skip
ABSURD: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({"steps": 10**400}, {}, 2),
    ({"grad_evals": 10**400}, {}, 2),
    ({"step_size": 1.7e308}, {}, 2),
    (EVENT, {}, 0),
    ({}, {"grad_evals": 10**400}, 2),
    ({}, hostile_evaluation(n=10**400), 2),
    ({}, hostile_evaluation(non_finite="x"), 2),
    ({}, hostile_evaluation(params={"restarts": "x"}), 2),
    ({}, hostile_evaluation(params={"version": [1]}), 2),
    ({}, hostile_evaluation(params={"eps": "x"}), 2),
    ({}, hostile_evaluation(params={"eps": 1, "step_size": 1, "c": 1}), 0),
]


@pytest.mark.parametrize(("row", "summary", "code"), ABSURD)
def test_a_stranger_may_write_any_number_into_a_run(
    row: dict[str, Any],
    summary: dict[str, Any],
    code: int,
    tmp_path: Path,
    amata: Callable[..., Called],
) -> None:
    """Whatever is in its files, with valid checksums: a report and a table, or one line."""
    (recipe,) = plan(RECIPES[:1], QUICK, 1)
    run = written_run(tmp_path / "run", recipe, 0.0)
    known = run.summary()
    first, *rest = run.metrics.read_text().splitlines(keepends=True)
    lines = [{**json.loads(first), **row}] if "event" not in row else [json.loads(first), row]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "".join(rest))
    run.write_summary({**known, **summary})
    called = [amata("report", run.path, "--out", tmp_path / "r")]
    called += [amata("train", "--resume", run.path)] if summary else []
    assert [(c.code, c.err.count("\n") <= 2) for c in called] == [(code, True)] * len(called)


def test_a_study_repeats_no_absurd_number_of_steps(tmp_path: Path) -> None:
    """One row of metrics.jsonl would keep `landscape` and `criterion` busy for years."""
    (recipe,) = plan(RECIPES[:1], QUICK, 1)
    run = written_run(tmp_path / "run", recipe)
    text = run.metrics.read_text().replace('"steps": 2', '"steps": 1000000')
    run.metrics.write_text(text)
    run.write_summary({k: v for k, v in run_summary(run).items() if k != "metrics_sha256"})
    for study in (lambda: run_landscapes(run.path, []), lambda: check_epochs(run)):
        with pytest.raises(InputError, match="epoch 1 has K = 1000000, more than the 1,000 steps"):
            study()


def test_an_attack_of_any_name_can_be_the_strongest() -> None:
    results = {
        name: {"accuracy": 0.5} for name in ("clean", "pgd-x", "pgd-20-2", "pgd-" + "9" * 50)
    }
    assert robust_attack(results) == "pgd-20-2"


def run_summary(run: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "summary.json").read_text())
    return {k: v for k, v in found.items() if k != "sha256"}


@pytest.mark.parametrize(("file", "text", "message"), DAMAGES)
def test_a_damaged_file_of_a_comparison_is_one_line(
    file: str, text: str, message: str, comparison: Path, amata: Callable[..., Called]
) -> None:
    (comparison / file).write_bytes(text.encode(errors="surrogateescape"))
    called = amata("report", comparison, "--out", comparison)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert message in called.err


def test_smoothing_does_not_lag() -> None:
    assert smooth([3.0] * 40) == pytest.approx([3.0] * 40)
    falling = [100.0 - i for i in range(40)]
    assert smooth(falling) == pytest.approx(falling)
    noisy = [float(i % 2) for i in range(60)]
    assert all(abs(v - 0.5) < 0.11 for v in smooth(noisy)[2:-2])


def lead_row(recipe: str, params: dict[str, Any] | None = None, **accuracies: float) -> Any:
    """A row with test accuracies on 1,000 images; pgd40=0.9 is the accuracy under pgd-40."""
    found = {}
    for key, value in accuracies.items():
        name = key.replace("pgd", "pgd-")
        low, high = wilson(round(1000 * value), 1000)
        inside = {"norm": "linf", "eps": 0.3, "step_size": 0.01, "restarts": 1, **(params or {})}
        found[name] = {
            "accuracy": value,
            "low": low,
            "high": high,
            "n": 1000,
            "params": {} if name == "clean" else inside,
            "split": "test",
            "alike": True,
        }
    return {
        "recipe": recipe,
        "accuracies": found,
        "seeds": [0],
        "cost_ratio": 0.6,
        "speedup": 2.0,
        "train_seconds": 10.0,
        "grad_evals": 600,
    }


def lead_result(*rows: Any, same_images: bool = True) -> dict[str, Any]:
    shared, reason = compare_under_one_attack(rows, same_images=same_images)
    return {
        "rows": list(rows),
        "shared": shared,
        "not_compared": reason,
        "times_comparable": True,
    }


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (0.904, "1.0 points above first (−1.7 to +3.7, not significant), with 0.60 times the"),
        (0.83, "<b>6.4 points below</b> first (−9.4 to −3.4), with 0.60 times the"),
        (0.894, "equal to first (−2.7 to +2.7, not significant), with 0.60 times the"),
    ],
)
def test_the_lead_of_two_recipes_is_one_sentence(accuracy: float, words: str) -> None:
    result = lead_result(lead_row("first", pgd40=0.894), lead_row("second", pgd40=accuracy))
    text = headline(result)
    assert text.startswith(f"second reaches <b>{100 * accuracy:.1f}%</b> (")
    assert words in text
    assert text.endswith(" gradient evaluations and 0.50 times the training time.")
    assert text.count(". ") == 0
    assert "pgd-40 (L∞, eps 0.3, alpha 0.01, 1 restart), on 1,000 test images" in about_lead(result)
    assert lead_table(result) == []
    assert "training time" not in headline({**result, "times_comparable": False})


def test_the_lead_of_two_recipes_that_did_not_learn_names_no_winner() -> None:
    result = lead_result(lead_row("first", pgd40=0.0), lead_row("second", pgd40=0.0004))
    assert headline(result) == "Neither first nor second is robust: both have 0.0%."


@pytest.mark.parametrize(
    ("rows", "attack"),
    [
        # each recipe has a strongest attack of its own; the shared ones are compared
        (({"pgd40": 0.8, "pgd20": 0.9}, {"pgd20": 0.85, "fgsm": 0.7}), "pgd-20"),
        (({"pgd40": 0.8, "fgsm": 0.79}, {"pgd40": 0.7, "fgsm": 0.9}), "pgd-40"),
        (({"clean": 0.9, "pgd40": 0.8}, {"clean": 0.9}), None),
        (({"pgd40": 0.8}, {"pgd40": 0.8, "params": {"step_size": 0.02}}), None),
        (({"pgd40": 0.8}, {"pgd40": 0.8, "params": {"eps": 0.1}}), None),
        (({"pgd40": 0.8}, {"pgd40": 0.8, "params": {"precision": "tf32"}}), "pgd-40"),
    ],
)
def test_the_lead_compares_under_one_attack(rows: Any, attack: str | None) -> None:
    result = lead_result(*(lead_row(f"r{i}", **row) for i, row in enumerate(rows)))
    assert (result["shared"] and result["shared"]["attack"]) == attack
    if attack is None:
        assert headline(result).startswith("Robust accuracies are not compared: the runs share no")


def test_the_lead_of_many_recipes_is_a_short_table() -> None:
    rows = [lead_row(f"r{i}", pgd40=0.80 + i / 100) for i in range(12)]
    result = lead_result(*rows)
    head, baseline, best, *_ = table = lead_table(result)
    assert headline(result) == ""
    assert [cell if isinstance(cell, str) else cell[0] for cell in head] == [
        "recipe", "accuracy under pgd-40", "difference", "training (s)", "gradient evaluations",
    ]  # fmt: skip
    assert (baseline[0], baseline[2]) == ("r0", "baseline")
    assert (best[0], best[2]) == ("r11", ("+11.0", "+7.9 to +14.1"))
    assert len(table) == 1 + 8
    assert "7 most accurate recipes; 4 more below" in about_lead(result)
    few = lead_table(lead_result(*rows[:3]))
    assert [row[0] for row in few] == ["recipe", "r0", "r1", "r2"]
    assert few[2][2] == ("+1.0", "−2.5 to +4.5, not significant")


def test_the_lead_of_one_recipe_is_its_own_sentence() -> None:
    result = lead_result(lead_row("alone", pgd40=0.894, clean=0.97))
    assert headline(result) == (
        "alone reaches <b>89.4%</b> (87.3 to 91.2) robust accuracy after 10.0 s and 600 gradient "
        "evaluations."
    )


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """The first example of his paper, 56/70 against 48/80, method 10."""
    one, other = (
        {"accuracy": k / n, "low": wilson(k, n)[0], "high": wilson(k, n)[1]}
        for k, n in ((56, 70), (48, 80))
    )
    found = difference(one, other)
    assert found["accuracy"] == pytest.approx(0.2)
    assert (found["low"], found["high"]) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def right(run: RunFolder, attack: str) -> Any:
    result = run.summary()["evaluation"][attack]
    return np.array(unpack(result["outcomes"], result["n"]), dtype=float)


@pytest.mark.slow
def test_differences_are_paired_by_seed_and_image(compared: Path, tmp_path: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    attack, (first, second) = result["shared"]["attack"], result["rows"][:2]
    runs, _ = find_runs([compared])
    by_title = {
        row["recipe"]: [r for r in runs if r.path.name.rpartition("-")[0] == row["recipe"]]
        for row in (first, second)
    }
    tables = [np.stack([right(run, attack) for run in own]) for own in by_title.values()]
    found = over_seeds_and_images(tables[1] - tables[0])
    assert result["shared"]["paired"]
    assert second["difference"]["accuracy"] == pytest.approx(found.mean)
    assert second["difference"]["high"] == pytest.approx(min(1.0, found.high))
    assert "by seed and image" in about_lead(result)
    alone = compare_runs([own[0] for own in by_title.values()])
    low, high = over_images(right(by_title[second["recipe"]][0], attack) - tables[0][0])
    gap = alone["rows"][1]["difference"]
    assert (gap["low"], gap["high"]) == pytest.approx((low, high))
    assert "image by image" in about_lead(alone)
    # of other seeds only the intervals of both are known
    uneven = compare_runs([*by_title[first["recipe"]], by_title[second["recipe"]][0]])
    assert not uneven["shared"]["paired"]
    assert "as independent" in about_lead(uneven)


def test_several_seeds_on_few_images_are_never_certain() -> None:
    every, nothing = np.ones((3, 10), dtype=bool), np.zeros((3, 10), dtype=bool)
    assert paired_difference(every, every)["low"] < -0.1
    assert paired_difference(every, nothing)["low"] < 0.9
    alone = paired_difference(every[:2, :1], nothing[:2, :1])
    assert (alone["accuracy"], alone["high"]) == (1.0, 1.0)
    assert alone["low"] < 0.5


def test_seeds_that_were_tested_differently_are_not_paired(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "runs", tmp_path / "runs")
    runs, _ = find_runs([tmp_path / "runs"])
    for run in runs:
        if run.path.name.endswith("seed1"):
            summary = run.summary()
            for result in summary["evaluation"].values():
                result["outcomes"] = pack(unpack(result["outcomes"], result["n"])[:40])
                result["accuracy"] = sum(unpack(result["outcomes"], 40)) / 40
                result.update({"n": 40, "low": 0.0, "high": 1.0})
            run.write_summary(summary)
    result = compare_runs(runs)
    assert result["shared"] is None
    assert any("tested on other numbers of images" in text for text in result["warnings"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"outcomes": "AAAA"}, "do not fit its images"),
        ({"outcomes": "!"}, "not base64"),
        ({"n": 10**7}, "do not fit its images"),
        ({"n": 10**12}, "are of 1,000,000,000,000 images"),
        ({"accuracy": 0.9999}, "do not fit its accuracy"),
    ],
)
def test_outcomes_that_do_not_fit_are_one_line(
    change: dict[str, Any], problem: str, compared: Path, tmp_path: Path
) -> None:
    shutil.copytree(compared / "runs", tmp_path / "runs")
    runs, _ = find_runs([tmp_path / "runs"])
    for run in runs:
        summary = run.summary()
        for result in summary["evaluation"].values():
            result.update({**change, "low": 0.0, "high": 1.0})
        run.write_summary(summary)
    with pytest.raises(InputError, match=problem):
        compare_runs(runs)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        (
            "pgd-50-10",
            {"norm": "l2", "eps": 128 / 255, "step_size": 0.025, "restarts": 10},
            "pgd-50-10 (L2, eps 128/255, alpha 0.025, 10 restarts)",
        ),
        (
            "held-out pgd-20",
            {"norm": "linf", "eps": 8 / 255, "step_size": 2 / 255, "restarts": 1},
            "pgd-20 (L∞, eps 8/255, alpha 2/255, 1 restart)",
        ),
        (
            "autoattack",
            {"norm": "linf", "eps": 0.1 + 0.2, "version": "standard"},
            "autoattack (L∞, eps 0.3, version standard)",
        ),
    ],
)
def test_an_attack_is_described_with_its_parameters(
    name: str, params: dict[str, Any], words: str
) -> None:
    assert describe_attack(name, params) == words


@pytest.mark.parametrize(
    ("options", "data"),
    [
        (["data.name=mnist"], "2 data sets (mnist5k, mnist)"),
        (["data.name=folder", "data.root=my/photos"], "2 data sets (mnist5k, folder photos)"),
        (["data.root=elsewhere"], "mnist5k, with different test images"),
    ],
)
def test_mixed_data_are_not_compared(options: list[str], data: str, tmp_path: Path) -> None:
    runs = [
        written_run(tmp_path / "one", load(RECIPES[0], QUICK), 0.0),
        written_run(tmp_path / "two", load(RECIPES[1], [*QUICK, *options]), 50.0),
    ]
    result = compare_runs(runs)
    assert f"Data: {data}." in setting(result)
    assert headline(result) == (
        "Robust accuracies are not compared: the runs have different test images."
    )
    assert [row["difference"] for row in result["rows"]] == [None, None]


@pytest.mark.parametrize(
    ("variants", "titles"),
    [
        ([["optim.lr=0.1"], ["optim.lr=0.2"]], ["r (optim.lr=0.1)", "r (optim.lr=0.2)"]),
        ([[], ["train.seed=1"]], ["r", "r"]),
        (
            [["schedule.k_max=4"], ["schedule.k_max=4", "optim.lr=0.1"], ["schedule.k_max=5"]],
            ["r (schedule.k_max=4, optim.lr=0.05)", "r (schedule.k_max=4, optim.lr=0.1)",
             "r (schedule.k_max=5, optim.lr=0.05)"],
        ),
        (
            [["optim.milestones=[]"], ["optim.milestones=[2]"]],
            ["r (optim.milestones=[])", "r (optim.milestones=2)"],
        ),
        ([["threat.eps=8/255"], []], ["r (threat.eps=8/255)", "r (threat.eps=0.2)"]),
    ],
)  # fmt: skip
def test_equal_names_are_told_apart_by_what_differs(
    variants: list[list[str]], titles: list[str], tmp_path: Path
) -> None:
    runs = [
        written_run(
            tmp_path / str(i),
            replace(load("mnist5k-amata", [*QUICK, *options]), name="r"),
            90.0 * i,
        )
        for i, options in enumerate(variants)
    ]
    assert [curve["recipe"] for curve in compare_runs(runs)["curves"]] == titles


def test_labels_at_line_ends_do_not_overlap() -> None:
    wanted = [0.5, 0.1, 0.52, 0.51, 0.9, 0.11]
    places = spread(wanted, 0.06)
    ordered = sorted(places)
    assert all(b - a > 0.06 - 1e-9 for a, b in pairwise(ordered))
    assert [wanted.index(w) for w in sorted(wanted)] == [places.index(p) for p in ordered]
    assert places[4] == 0.9


@pytest.mark.parametrize("count", [1, 2, 4, 9, 18])
@pytest.mark.parametrize("name", ["short", "a-recipe-with-a-very-long-name-" * 3])
def test_no_legend_or_label_covers_a_line(
    count: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Legends and labels against the axes, in display coordinates of the figures as drawn."""
    runs = [
        written_run(tmp_path / str(i), named(RECIPES[0], f"{name}{i}", i), 90.0 * i)
        for i in range(count)
    ]
    result, checked = compare_runs(runs), []

    def check(figure: Any) -> bytes:
        figure.draw_without_rendering()
        ax = figure.axes[0]
        area = ax.get_window_extent()
        boxes = [legend.get_window_extent() for legend in figure.legends]
        boxes += [text.get_window_extent() for text in ax.texts]
        assert ax.get_legend() is None
        for box in boxes:
            assert not (box.x0 < area.x1 - 1 and box.y0 < area.y1 - 1 and box.y1 > area.y0 + 1)
            assert box.x0 >= -1
            assert box.x1 <= figure.bbox.width + 1
        assert area.width > 0.5 * figure.bbox.width
        checked.append(len(boxes))
        return b"<svg/>"

    monkeypatch.setattr("amata.report.figures.to_svg", check)
    monkeypatch.setattr("amata.report.comparison.to_svg", lambda figure: b"<svg/>")
    _loss(result, tmp_path)
    assert checked == [0 if count == 1 else count if count <= 4 and name == "short" else 1]


class Outline(HTMLParser):
    """The alternative texts, ids and external references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str | None] = []
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "svg":
            self.labels.append(found.get("aria-label") if found.get("role") == "img" else None)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.loads += [
            v or ""
            for k, v in attrs
            if k in ("src", "href", "xlink:href", "data")
            and not (v or "").startswith(("#", "data:"))
        ]


@pytest.mark.slow
def test_the_page_is_complete_and_loads_nothing(compared: Path) -> None:
    text = (compared / "report.html").read_text()
    outline = Outline()
    outline.feed(text)
    assert len(outline.labels) == 7
    assert all(label and len(label) > 20 for label in outline.labels)
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.loads == []
    assert not re.findall(r"url\((?!#)|@import", text)
    for reference in re.findall(r'(?:url\(#|href="#)([^")]+)', text):
        assert reference in outline.ids
    for name in (
        "results.csv",
        "results.md",
        "differences.csv",
        "figures/robust-time.svg",
        "figures/robust-time.png",
    ):
        assert (compared / name).is_file()


@pytest.mark.slow
def test_tables_are_the_same_in_every_form(compared: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    table = result_table(result)
    assert as_csv(table).count("\n") == as_markdown(table).count("\n") - 1 == 3
    assert len(result_csv(result).splitlines()) == 1 + 2 * 2
    assert f"{100 * result['rows'][1]['accuracies']['pgd-2']['accuracy']:.1f}" in as_markdown(table)


@pytest.mark.slow
def test_names_and_warnings_are_escaped_and_the_last_points_are_whole(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((compared / "compare.json").read_text())
    result["rows"][0]["recipe"] = '<script>alert("x")</script>'
    result["warnings"] = ["a < b & c"]
    for curve in result["curves"][::2]:
        curve["recipe"] = result["rows"][0]["recipe"]
        events = [{"event": "collapse", "extra_steps": 1}, {"event": "fall", "lr_scale": 0.25}]
        curve["events"] = [
            {**event, "action": "rollback", "epoch": 1, "before": 0.5, "after": 0.1}
            for event in events
        ]
    result["differences"] = []
    whole: list[bool] = []

    def draw(figure: Any) -> bytes:
        """Nothing at the end of a line is cut by the edge of the axes."""
        (ax,) = figure.axes
        ends = [line.get_xdata()[-1] for line in ax.lines if line.get_marker() not in ("", "None")]
        whole.extend(end < ax.get_xlim()[1] for end in ends)
        return to_svg(figure)

    monkeypatch.setattr("amata.report.comparison.to_svg", draw)
    text = page(result, comparison_figures(result, tmp_path), result["rows"][0]["recipe"])
    assert whole
    assert all(whole)
    assert "<script" not in text
    assert "a &lt; b &amp; c" in text
    assert "epoch 2: collapse, rollback (50.0% to 10.0%), then 1 more inner step<" in text
    assert "epoch 2: fall, rollback (50.0% to 10.0%), then 0.25 of the learning rate<" in text


CHROMIUM = (
    shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
)
LOOK = """<script>
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const figures = [...page.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect());
  window.look = {over: root.scrollWidth - root.clientWidth,
    width: root.clientWidth, figures: figures.length,
    seen: figures.every(b => b.width > 200 && b.height > 100 && b.right <= root.clientWidth),
    cut: [...page.querySelectorAll(".wide")].filter(e => e.scrollWidth > e.clientWidth).length,
    main: page.querySelector("main").innerText.length,
    smallest: Math.min(...[...page.querySelectorAll("main :not(style):not(title)")]
      .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
      .map(e => parseFloat(frame.contentWindow.getComputedStyle(e).fontSize) *
        (e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().d : 1))),
    broken: [...page.querySelectorAll(".prose tbody th")].filter(e => {
      const range = page.createRange();
      range.selectNodeContents(e);
      const lines = new Set([...range.getClientRects()].map(box => box.top));
      return !/[._ ]/.test(e.textContent) && lines.size > 1;
    }).length,
    text: page.querySelector("main").textContent,
    pwned: window.pwned ?? null,
    foreign: page.querySelectorAll("script, img, iframe, object, embed").length};
  document.title = JSON.stringify(window.look);
}
</script>"""


def browse(inner: str, width: int, folder: Path) -> tuple[dict[str, Any], str]:
    """What a browser shows of a page, and the messages on its console."""
    # a frame, because a browser window cannot be as narrow as a phone; the page itself may not
    # run scripts
    outer = folder / "page.html"
    outer.write_text(
        f'{LOOK}<iframe width="{width}" height="2000" style="border: 0" onload="look(this)" '
        f'srcdoc="{escape(inner)}"></iframe>'
    )
    options = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync "
        f"--enable-logging=stderr --hide-scrollbars --user-data-dir={folder / 'profile'} "
        "--window-size=1700,2100 --dump-dom"
    )
    ran = subprocess.run(
        [str(CHROMIUM), *options.split(), f"file://{outer}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    title = re.search(r"<title>(.*?)</title>", ran.stdout, re.S)
    assert title, ran.stderr[-2000:]
    return json.loads(unescape(title[1])), ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [400, 900, 1600])
def test_a_browser_shows_the_whole_page(width: int, compared: Path, tmp_path: Path) -> None:
    found, console = browse((compared / "report.html").read_text(), width, tmp_path)
    assert found["width"] == width
    assert found["over"] == 0
    assert found["cut"] == 0
    assert found["broken"] == 0
    assert found["smallest"] >= 12
    assert found["figures"] == 7
    assert found["seen"]
    assert found["main"] > 500
    assert "CONSOLE" not in console


HOSTILE = (
    '<script>parent.pwned = "script"</script>',
    '<img src=x onerror="parent.pwned = 1">',
    "<svg onload=parent.pwned=2><a id=\"x\" href='javascript:parent.pwned=3'>$x^2$ url(#y)",
    "]]>--><iframe srcdoc='<script>top.pwned=4</script>'>\x1b[31m\n</style></title>",
)
INJECTED = """<script>parent.pwned = "script"</script><img src="data:," onerror="parent.pwned = 1">
<svg onload="parent.pwned = 2"></svg><iframe srcdoc="<script>top.pwned = 3</script>"></iframe>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_runs_no_script_of_hostile_names(tmp_path: Path) -> None:
    first, second, third, fourth = HOSTILE
    runs = [
        written_run(tmp_path / str(index), named(recipe, name), 100.0 * index)
        for index, (recipe, name) in enumerate(
            zip((*RECIPES, "mnist5k-pgd"), HOSTILE, strict=False)
        )
    ]
    result = compare_runs(runs, failures=[fourth])
    for curve in result["curves"]:
        curve["run"] = fourth
        curve["events"] = [
            {"event": second, "action": first, "epoch": 0, "before": 0.5, "after": 0.1}
        ]
    result["order"] = list(HOSTILE)
    result["environment"]["device"] = result["valid_attack"] = third
    result["data"] = [third]
    result["differences"].append({"key": first, "values": dict.fromkeys(HOSTILE, second)})
    text = page(result, comparison_figures(result, tmp_path / "figures"), " vs ".join(HOSTILE))
    found, console = browse(text, 900, tmp_path)
    assert found["pwned"] is None
    assert found["foreign"] == 0
    assert "CONSOLE" not in console, "the browser complained"
    for name in (first, second, third, fourth.replace("\x1b", r"\x1b").replace("\n", r"\n")):
        assert found["text"].count(name) > 2, name
    # even a name that is not escaped runs nothing
    found, console = browse(text.replace("</h1>", f"</h1>{INJECTED}"), 900, tmp_path)
    assert (found["pwned"], found["foreign"]) == (None, 3)
    assert "Content Security Policy" in console


@pytest.mark.parametrize(
    ("edge", "text", "shown"),
    [
        (
            for_html,
            "<b> & \"x\" 'y'\n\x1b[0m",
            "&lt;b&gt; &amp; &quot;x&quot; &#x27;y&#x27;\\n\\x1b[0m",
        ),
        (for_csv, "=1+1", "'=1+1"),
        (for_csv, "@SUM(A1)", "'@SUM(A1)"),
        (for_csv, "-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
        (for_csv, "+a\t", "'+a\\t"),
        (for_csv, "-0.5", "-0.5"),
        (for_csv, "+1e-05", "+1e-05"),
        (for_csv, "\t=1", "\\t=1"),
        (for_csv, "mnist-amata", "mnist-amata"),
        (for_markdown, "a|b\\|c", r"a\|b\\\|c"),
        (for_markdown, "<img>`*[x](y)", r"&lt;img&gt;\`\*\[x\](y)"),
        (for_markdown, "two\nlines", r"two\\nlines"),
        (for_figure, "$x^2$ \r", r"\$x^2\$ \r"),
        (for_figure, "_hidden", " _hidden"),
        (for_figure, "a" * 255, "a" * 20 + "…" + "a" * 20),
    ],
)
def test_a_name_is_shown_literally(edge: Callable[[str], str], text: str, shown: str) -> None:
    assert edge(text) == shown


def test_tables_and_figures_take_any_name(tmp_path: Path) -> None:
    names = ("=cmd()", r"$\frac{1}{$ $", "字" * 85, "x[/y]z [bold] :smile: \x1b[31m\n")
    runs = [
        written_run(tmp_path / str(i), named(RECIPES[i % 2], name, i))
        for i, name in enumerate(names)
    ]
    result = compare_runs(runs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _loss(result, tmp_path)
    assert r"$\frac{1}{$ $" in (tmp_path / "loss.svg").read_text()
    table = list(csv.reader(io.StringIO(result_csv(result))))
    assert {row[0] for row in table[1:]} >= {"'=cmd()", names[1], names[2]}
    assert as_markdown(result_table(result)).count("\n") == 2 + len(names)
    console = PlainConsole()
    console.width = 160
    with console.capture() as captured:
        console.print(comparison_table(result))
        console.print(names[3], soft_wrap=True)
    assert captured.get().count(r"x[/y]z [bold] :smile: \x1b[31m\n") == 2
    assert "\x1b" not in captured.get()
    assert captured.get().count("60.0 ±9.4") == 2 * len(names)  # a long name leaves room


def test_a_figure_is_replaced_whole(tmp_path: Path) -> None:
    """Another process that reads a figure sees the old one or the new one."""
    for title in ("old", "new"):
        with figure(tmp_path / "f", 1, 1, (1, 1)) as axes:
            axes[0, 0].set_title(title)
        for kind in ("svg", "png"):
            if title == "old":
                os.link(tmp_path / f"f.{kind}", tmp_path / f"seen.{kind}")
            else:
                assert not os.path.samefile(tmp_path / f"f.{kind}", tmp_path / f"seen.{kind}")
    assert {p.name for p in tmp_path.iterdir()} == {"f.svg", "f.png", "seen.svg", "seen.png"}


@pytest.mark.slow
def test_a_report_needs_no_weights(
    compared: Path, tmp_path: Path, amata: Callable[..., Called]
) -> None:
    """The small files of a run are enough for a report, and for resuming a comparison."""
    kept = tmp_path / "kept"
    for run in (compared / "runs").iterdir():
        (kept / "runs" / run.name).mkdir(parents=True)
        for name in ("recipe.toml", "env.json", "metrics.jsonl", "summary.json"):
            shutil.copy(run / name, kept / "runs" / run.name / name)
    planned = json.loads((compared / "plan.json").read_text())
    target = json.loads((compared / "compare.json").read_text())["target"]
    write_record(kept / "plan.json", {"order": planned["order"], "target": target})
    env = next((kept / "runs").glob("*/env.json"))
    found = {k: v for k, v in json.loads(env.read_text()).items() if k != "sha256"}
    env.write_text(json.dumps({**found, "commit": "another"}))
    assert amata("report", str(kept), "--out", str(tmp_path / "again")).code == 0
    first, again = (
        json.loads((folder / "compare.json").read_text())
        for folder in (compared, tmp_path / "again")
    )
    # Whether other work slowed a run is judged among runs of one commit.
    judged = {"times_comparable", "speedup", "speedup_to_target"}
    for rows in (again["rows"], first["rows"]):
        rows[:] = [{k: v for k, v in row.items() if k not in judged} for row in rows]
    assert again["rows"] == first["rows"]
    assert (again["target"], again["target_source"]) == (target, "given")
    assert any("different commits" in w for w in again["warnings"])
    assert re.search("another; |; another", (tmp_path / "again" / "environment.md").read_text())
    assert amata("report", str(kept / "runs"), "--out", str(tmp_path / "flat")).code == 0
    flat = json.loads((tmp_path / "flat" / "compare.json").read_text())
    assert sorted(row["recipe"] for row in flat["rows"]) == sorted(
        row["recipe"] for row in first["rows"]
    )
    one = next((kept / "runs").iterdir())
    assert (
        "is a run folder; choose another folder"
        in amata("report", str(kept), "--out", str(one)).err
    )
    failed = amata("eval", str(one))
    assert (failed.code, "its weights were not kept" in failed.err) == (2, True)


@pytest.mark.slow
def test_a_clipped_interval_shows_both_ends(compared: Path) -> None:
    result = json.loads((compared / "compare.json").read_text())
    result["rows"][0]["accuracies"]["clean"] |= {"accuracy": 0.39, "low": 0.0, "high": 1.0}
    result["rows"][1]["accuracies"]["clean"] |= {"accuracy": 0.459, "low": 0.447, "high": 0.471}
    table = comparison_table(result)
    place = [column.title for column in table.columns].index("clean")
    assert [row[place] for row in table.rows] == ["39.0 (0 to 100)", "45.9 ±1.2"]


def python_run(folder: Path, steps: int, evaluation: dict[str, Any], *, valid: bool = True) -> Path:
    """A run of `fit` on tensors, with the given test evaluation."""
    options = [f"schedule.k_max={steps}", "schedule.k_min=1", "schedule.tau=0.02"]
    options += ["data.valid=0", "data.batch_size=8", "threat.eps=0.02", "optim.ema=0"]
    recipe = load("mnist5k-amata", [*QUICK, *options])
    data = (images(64), labels(64))
    held_out = data if valid else None
    fitted = fit(small_net(), data, held_out, recipe=recipe, run=folder, progress=False)
    summary = {
        "recipe": recipe.name,
        "epochs": 3,
        "train_seconds": fitted.train_seconds,
        "grad_evals": fitted.grad_evals,
        "grad_evals_per_image": fitted.grad_evals / fitted.images,
        "best_epoch": 1 if valid else None,
        "evaluation": evaluation,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.slow
def test_runs_without_a_test_evaluation_show_held_out_accuracies(
    tmp_path: Path, amata: Callable[..., Called]
) -> None:
    tested = {
        name: asdict(Result(0.5, 10, 0.2, 0.8, 0, 1.0, params))
        for name, params in (("clean", {}), ("pgd-2", {"eps": 0.2}))
    }
    one = python_run(tmp_path / "one", 1, {})
    two = python_run(tmp_path / "two", 3, {})
    three = python_run(tmp_path / "three", 2, tested)
    bare = python_run(tmp_path / "bare", 2, {}, valid=False)

    def report(name: str, *runs: Path) -> tuple[dict[str, Any], str, str]:
        folder = tmp_path / "reports" / name
        called = amata("report", *runs, "--out", folder)
        assert called.code == 0, called.err
        page = (folder / "report.html").read_text()
        return json.loads((folder / "compare.json").read_text()), called.out, page

    result, out, text = report("untested", one, two)
    assert result["attacks"] == ["held-out clean", "held-out pgd-2"]
    for row, run in zip(result["rows"], (one, two), strict=True):
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert epochs[1]["valid"]["clean"] != epochs[2]["valid"]["clean"]
        for name, found in row["accuracies"].items():
            assert found["accuracy"] == epochs[1]["valid"][name.removeprefix("held-out ")]
            assert (found["n"], found["split"]) == (64, "held-out")
    assert re.search(r"; 64 held-out\s+images", out)
    assert "No run has a test evaluation. Held-out accuracies are on 64 images" in text
    assert re.search(r"pgd-2 \(L∞, eps 0.02, [^)]*\), on 64 held-out images", text)
    assert "test images" not in text
    assert "held-out pgd-2" in (tmp_path / "reports" / "untested" / "results.csv").read_text()

    result, out, text = report("mixed", one, three)
    assert result["attacks"] == ["clean", "pgd-2", "held-out clean", "held-out pgd-2"]
    assert [len(row["accuracies"]) for row in result["rows"]] == [2, 4]
    assert "no test evaluation of one: compare the held-out accuracies" in result["warnings"]
    assert re.search(r"10 test images, 64\s+held-out\s+images", out)
    assert re.search(r"pgd-2 \(L∞, eps 0.02, [^)]*\), on 64 held-out images", text)

    result, out, text = report("bare", bare)
    assert result["attacks"] == []
    assert re.search(r"trained for [\d.]+ s with [\d,]+ gradient evaluations\.", text)
    assert "neither a test evaluation nor held-out images" in text
    assert len((tmp_path / "reports" / "bare" / "results.csv").read_text().splitlines()) == 2
