"""Evaluations that a run folder keeps: recognised, continued, shown, and checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amata import recipes
from amata.console import ConsoleReporter
from amata.errors import InputError, Interrupted
from amata.evaluation import unpack
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.evaluations import read_evaluations
from amata.runs.files import write_record
from amata.studies.compare import compare_runs
from amata.training.experiment import resume, train
from tests.conftest import Called
from tests.test_compare import QUICK

SHORT = ("--limit", "20", "--set", "eval.batch_size=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("stored") / "run"
    train(recipes.load("mnist5k-amata", [*QUICK, "train.epochs=1"]), path)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def only_file(run: Path, n: int) -> Path:
    (file,) = run.glob(f"evaluations/*-{n}-*.json")
    return file


def without_times(printed: str) -> dict[str, Any]:
    return {name: {**result, "seconds": 0} for name, result in json.loads(printed).items()}


class StopAt(Reporter):
    """Ctrl-C at the n-th callback of an evaluation by an attack."""

    def __init__(self, calls: int, attack: str) -> None:
        self.calls, self.attack = calls, attack

    def evaluating(self, attack: str, *_: Any, **__: Any) -> None:
        self.calls -= attack == self.attack
        if self.calls == 0:
            raise KeyboardInterrupt


def test_results_are_kept_and_not_computed_again(amata: Callable[..., Called], run: Path) -> None:
    call = ("eval", str(run), *SHORT, "--json", "--attacks")
    first = amata(*call, "clean,pgd-3")
    assert first.code == 0, first.err
    record = read_evaluations(only_file(run, 20))
    assert record["context"]["test_hash"] == RunFolder(run).split()["test_hash"]
    assert {"date", "environment"} <= record.keys()
    kept, printed = record["results"]["pgd-3"], json.loads(first.out)["pgd-3"]
    assert len(unpack(kept["outcomes"], kept["n"])) == 20
    assert kept["outcomes"] == printed["outcomes"]
    again = amata(*call, "pgd-3,clean")
    assert "pgd-3, clean: evaluated on " in again.err
    assert json.loads(again.out) == {k: json.loads(first.out)[k] for k in ("pgd-3", "clean")}
    # another attack alone is computed, another limit or parameter is another evaluation
    more = amata(*call, "clean,fgsm")
    assert "note: clean: evaluated on" in more.err
    assert set(read_evaluations(only_file(run, 20))["results"]) == {"clean", "pgd-3", "fgsm"}
    for change in (("--set", "threat.eps=0.1"), ("--set", "eval.step_size=0.01")):
        assert "evaluated on" not in amata(*call, "pgd-3", *change).err
    assert len(list(run.glob("evaluations/*-20-*"))) == 3
    forced = amata(*call, "clean,pgd-3", "--again")
    assert "evaluated on" not in forced.err
    assert without_times(forced.out) == without_times(first.out)


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_an_interrupted_eval_continues_with_the_same_results(
    amata: Callable[..., Called], run: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    call = ("eval", str(run), *SHORT, "--json", "--attacks", "clean,pgd-3-2")
    whole = amata(*call)
    shutil.rmtree(run / "evaluations")
    with monkeypatch.context() as patched:
        patched.setattr(ConsoleReporter, "evaluating", StopAt(stop, "pgd-3-2").evaluating)
        stopped = amata(*call)
    assert stopped.code == 130
    assert "what is done is kept, repeat the command to continue" in stopped.err
    weights = amata("eval", str(run / "model.safetensors"), *call[2:])
    assert weights.code == 0, weights.err
    with monkeypatch.context() as patched:
        patched.setattr(ConsoleReporter, "evaluating", StopAt(stop, "pgd-3-2").evaluating)
        partial = amata("eval", str(run / "model.safetensors"), *call[2:])
    assert partial.code == 130
    if stop == 1:
        assert (partial.out, partial.err[-12:]) == ("", "interrupted\n")
    else:
        done = 8 * (stop // 2)
        assert partial.err.endswith(f"interrupted after {done} of 20 images\n")
        assert {r["n"] for r in json.loads(partial.out).values()} == {done}
    continued = amata(*call)
    if stop > 1:
        assert f"pgd-3-2: continuing after {8 * (stop // 2)} images" in continued.err
    assert without_times(continued.out) == without_times(whole.out)


def test_the_final_evaluation_is_kept_and_continued(tmp_path: Path) -> None:
    more = ["train.epochs=1", "eval.batch_size=16", 'eval.attacks=["clean", "pgd-3"]']
    recipe = recipes.load("mnist5k-amata", [*QUICK, *more])
    whole = train(recipe, tmp_path / "whole").summary()["evaluation"]
    run = tmp_path / "stopped"
    with pytest.raises(Interrupted, match=r"train --resume .* continues the evaluation"):
        train(recipe, run, StopAt(4, "pgd-3"))
    assert not RunFolder(run).finished
    (file,) = run.glob("evaluations/*.json")
    assert read_evaluations(file)["state"]["tallies"]
    continued = resume(run).summary()["evaluation"]
    assert {k: {**v, "seconds": 0} for k, v in continued.items()} == {
        k: {**v, "seconds": 0} for k, v in whole.items()
    }
    for result in whole.values():
        assert sum(unpack(result["outcomes"], result["n"])) == round(
            result["accuracy"] * result["n"]
        )


def test_reports_show_what_was_evaluated_later(amata: Callable[..., Called], run: Path) -> None:
    n = max(result["n"] for result in RunFolder(run).summary()["evaluation"].values())
    given = ("eval", str(run), "--json", "--attacks")
    assert amata(*given, "pgd-3", "--limit", str(n)).code == 0
    assert amata(*given, "clean,pgd-5", "--limit", "20").code == 0
    assert amata(*given, "pgd-7", "--set", "threat.eps=0.05").code == 0
    before = RunFolder(run).summary()["evaluation"]
    accuracies = compare_runs([RunFolder(run)])["rows"][0]["accuracies"]
    assert set(accuracies) == {*before, "pgd-3", "pgd-5@20"}, "not those of another ball"
    assert accuracies["pgd-5@20"]["n"] == 20


def test_later_evaluations_of_a_fine_tuned_run_are_its_own(
    amata: Callable[..., Called], run: Path, tmp_path: Path
) -> None:
    """Where the training started is no part of what is evaluated."""
    start = (f"model.weights={run}", "model.new_head=true", "train.epochs=1")
    train(recipes.load("mnist5k-amata", [*QUICK, *start]), tmp_path / "tuned")
    called = amata("eval", tmp_path / "tuned", "--attacks", "clean,pgd-3")
    assert "clean: evaluated on" in called.err
    tuned = RunFolder(tmp_path / "tuned")
    assert "pgd-3" in compare_runs([tuned])["rows"][0]["accuracies"]


def test_a_weights_file_keeps_nothing(amata: Callable[..., Called], run: Path) -> None:
    shutil.rmtree(run / "evaluations", ignore_errors=True)
    weights = run / "model.safetensors"
    assert amata("eval", str(weights), *SHORT, "--attacks", "clean").code == 0
    assert not (run / "evaluations").exists()


def test_a_folder_that_cannot_be_written_is_a_note(amata: Callable[..., Called], run: Path) -> None:
    shutil.rmtree(run / "evaluations", ignore_errors=True)
    (run / "evaluations").write_text("a file")
    done = amata("eval", str(run), *SHORT, "--attacks", "clean")
    assert done.code == 0
    assert done.err.count("this evaluation is not kept: cannot write") == 1


def damage(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = read_evaluations(file)
    change(record)
    write_record(file, record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["state"].update(labels="AAAA"), "labels do not fit"),
        (lambda r: r["state"].update(classes=1), "labels outside its classes"),
        (lambda r: r["state"].update(classes=10**9), "state.classes"),
        (lambda r: r["state"]["tallies"]["clean"].update(outcomes="A"), "not base64"),
        (lambda r: r["state"]["tallies"]["clean"].update(images=9), "outcomes of clean"),
        (lambda r: r["state"].update(total=10), "counts do not fit"),
        (lambda r: r["state"].update(batches=9), "counts do not fit"),
        (lambda r: r["state"]["stats"].update(correct=99), "counts do not fit"),
        (lambda r: r["state"]["tallies"]["clean"].update(bad_gradients=1), "counts do not fit"),
        (
            lambda r: r["state"]["tallies"]["clean"].update(images=0, outcomes=""),
            "counts do not fit",
        ),
        (lambda r: r["results"]["clean"].update(accuracy=1.0, high=0.9), "counts do not fit"),
        (lambda r: r["context"].update(eps=0.5), "belongs to another evaluation"),
        (lambda r: r.pop("date"), "date: Field required"),
    ],
)
def test_damaged_files_are_refused(
    amata: Callable[..., Called],
    run: Path,
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    call = ("eval", str(run), *SHORT, "--attacks", "clean")
    assert amata(*call).code == 0
    damage(only_file(run, 20), change)
    refused = amata(*call)
    assert refused.code == 2
    assert message in refused.err
    assert "delete it, and evaluate again" in refused.err


def test_links_and_unsealed_files_are_refused(amata: Callable[..., Called], run: Path) -> None:
    call = ("eval", str(run), *SHORT, "--attacks", "clean")
    assert amata(*call).code == 0
    file = only_file(run, 20)
    file.write_text(file.read_text().replace('"sha256"', '"other"'))
    with pytest.raises(InputError, match="no checksum"):
        read_evaluations(file)
    moved = (run / "evaluations").rename(run.parent / "elsewhere")
    (run / "evaluations").symlink_to(moved)
    assert "is a symbolic link" in amata(*call).err
