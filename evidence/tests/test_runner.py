"""The runner: equal trials, seed by seed, continued from files without weights, or within a run."""

import json
import os
import shutil
import signal
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from amata.engine import worth
from amata.errors import InputError, Interrupted
from amata.reporter import Reporter
from amata.runs.files import read_record, write_record
from deadline import interrupting
from definition import Search, Study, Tuning
from runner import Runner, main

SMALL = (
    "data.limit=20",
    "data.valid=10",
    "data.batch_size=10",
    "eval.limit=20",
    "train.epochs=1",
    "train.valid_attack=pgd-1",
    "train.device=cpu",
)
STUDY = Study(
    {"one": ("mnist5k-pgd", ("schedule.steps=1",)), "two": ("mnist5k-pgd", ("schedule.steps=2",))},
    ("clean", "pgd-1"),
    seeds=2,
    tuning=Tuning((("optim.lr=0.1",), ("optim.lr=0.2",), ("optim.lr=0.3",)), "pgd-1", 10, seed=9),
)


def test_trials_are_equal_and_the_best_held_out_accuracy_wins(tmp_path: Path) -> None:
    runner = Runner(STUDY, tmp_path, overrides=SMALL)
    trials = dict(runner.trials())
    assert list(trials) == [f"trials/{arm}-{i}.json" for i in range(3) for arm in ("one", "two")]
    assert [r.optim.lr for r in trials.values()] == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert {(r.data.valid, r.train.seed) for r in trials.values()} == {(10, 9)}
    scores = {"one": (0.2, 0.5, 0.5), "two": (0.1, 0.2, 0.3)}
    (tmp_path / "trials").mkdir()
    for arm, values in scores.items():
        for i, value in enumerate(values):
            record = {"held_out": {"clean": 1 - value, "pgd-1": value}}
            (tmp_path / f"trials/{arm}-{i}.json").write_text(json.dumps(record))
    runs = dict(runner.runs())
    assert list(runs) == ["runs/one-seed0", "runs/two-seed0", "runs/one-seed1", "runs/two-seed1"]
    assert [r.optim.lr for r in runs.values()] == [0.2, 0.3, 0.2, 0.3]


def test_settings_that_lose_clean_accuracy_do_not_win() -> None:
    tuning = Tuning((), "pgd-1", 10, seed=9, least_clean=0.8)
    rows: list[dict[str, float] | None] = [
        {"clean": 0.9, "pgd-1": 0.3},
        {"clean": 0.8, "pgd-1": 0.4},
        {"clean": 0.7, "pgd-1": 0.5},
    ]
    assert tuning.winner(rows) == 1
    assert tuning.winner([None, *rows[2:]]) == 1, "the most accurate, if none has enough"
    assert tuning.winner([None, None]) is None


def test_a_study_continues_from_files_that_came_back(tmp_path: Path) -> None:
    tuning = Tuning((("optim.lr=0.1",),), "pgd-1", 10, seed=9)
    study = replace(STUDY, recipes={"one": STUDY.recipes["one"]}, seeds=1, tuning=tuning)
    first, stored = tmp_path / "first", tmp_path / "stored"
    late = Runner(study, first, overrides=SMALL, deadline=time.monotonic())
    assert late.run(Reporter()) == 1  # no time for the trial
    shared = set[int]()

    class Counting(Reporter):
        def note(self, text: str) -> None:
            shared.add(worth._runs)

    assert Runner(study, first, overrides=SMALL).run(Counting()) == 0
    assert shared == {2}  # what is compiled serves the trial and the run
    trial = json.loads((first / "trials/one-0.json").read_text())
    assert trial["images"] == 10
    assert set(trial["held_out"]) == {"clean", "pgd-1"}
    assert {f.suffix for f in first.rglob("*") if f.is_file()} == {".json", ".jsonl", ".toml"}
    shutil.copytree(first, stored)
    half = tmp_path / "half"
    shutil.copytree(first / "trials", half / "trials")
    shared.clear()
    assert Runner(study, half, overrides=SMALL).run(Counting()) == 0
    assert shared == {2}  # as it was for the runs before
    again = tmp_path / "again"
    assert Runner(study, again, stored, SMALL, time.monotonic()).run(Reporter()) == 0
    assert not list(again.iterdir())
    summary = stored / "runs/one-seed0/summary.json"
    write_record(summary, {**read_record(summary), "train_seconds": 1000})
    another = Runner(replace(study, seeds=2), again, stored, SMALL, time.monotonic() + 900)
    assert another.run(Reporter()) == 1  # a run like the stored one would not fit
    assert not list(again.iterdir())
    with pytest.raises(InputError, match=r"trial of another version of one"):
        Runner(study, again, stored, (*SMALL, "optim.momentum=0.5")).run(Reporter())


class Late(Reporter):
    """Lets the deadline pass after the first epoch."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def epoch(self, *_: object) -> None:
        self.runner.deadline = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)  # as the timer does


def test_parts_share_a_study(tmp_path: Path) -> None:
    """Every trial and run is made once, and runs wait for the trials of the other part."""
    tuning = Tuning((("optim.lr=0.1",),), "pgd-1", 10, seed=9)
    study = replace(STUDY, seeds=1, tuning=tuning)
    first, second = (Runner(study, tmp_path, None, SMALL, part=(i, 2)) for i in (1, 2))
    assert first.run(Reporter()) == 1
    assert [f.name for f in (tmp_path / "trials").iterdir()] == ["one-0.json"]
    assert read_record(tmp_path / "parts.json")["parts"] == 2
    assert second.run(Reporter()) == 0
    assert [f.name for f in (tmp_path / "runs").iterdir()] == ["two-seed0"]
    assert first.run(Reporter()) == 0
    assert {f.name for f in (tmp_path / "runs").iterdir()} == {"one-seed0", "two-seed0"}


def test_a_run_that_is_interrupted_in_time_is_continued(tmp_path: Path) -> None:
    study = replace(STUDY, recipes={"one": STUDY.recipes["one"]}, seeds=1, tuning=None)
    study = replace(study, steepness=("one",))
    settings = (*SMALL, "train.epochs=3")
    runner = Runner(study, tmp_path / "out", None, settings, work=tmp_path / "work")
    assert runner.run(Late(runner)) == 1
    assert not list((tmp_path / "out").iterdir())
    begun = tmp_path / "work/runs/one-seed0/metrics.jsonl"
    assert 0 < len(begun.read_text().splitlines()) < 3
    runner = Runner(study, tmp_path / "out", None, settings, work=tmp_path / "work")
    kept = begun.read_text()
    assert runner.run(Reporter()) == 0
    run = tmp_path / "out/runs/one-seed0"
    assert (run / "metrics.jsonl").read_text().startswith(kept)  # not trained again
    assert [row["epoch"] for row in read_record(run / "steepness.json")["epochs"]] == [1, 2, 3]
    assert not (tmp_path / "work/runs/one-seed0").exists()
    waiting = Runner(study, tmp_path / "other", None, settings, work=tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):  # by the user, not by the timer
        waiting.run(Impatient())


class Impatient(Reporter):
    def note(self, text: str) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_study_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> int:
        raise Interrupted("interrupted in k4-seed0; progress is saved", signal.SIGTERM)

    monkeypatch.setattr(Runner, "run", stop)
    with pytest.raises(SystemExit) as ended:
        main("cifar10-eps16", str(tmp_path))
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "interrupted in k4-seed0; progress is saved\n"


def test_the_deadline_interrupts_like_ctrl_c() -> None:
    for before in (signal.default_int_handler, signal.SIG_IGN):  # as behind an & of a script
        signal.signal(signal.SIGINT, before)
        with pytest.raises(KeyboardInterrupt), interrupting(time.monotonic()):
            threading.Event().wait(60)
    with interrupting(float("inf")), interrupting(time.monotonic() + 3600):
        pass
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_an_interrupt_that_python_ignores_is_sent_again() -> None:
    class Thing:
        pass

    things = [Thing()]
    ref = weakref.ref(things[0], lambda _: signal.raise_signal(signal.SIGINT))

    def work() -> None:
        things.clear()
        threading.Event().wait(60)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), interrupting(time.monotonic() + 3600):
        work()
    assert ref() is None


def test_the_winner_of_a_search_becomes_an_arm(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    recipe = STUDY.recipes["one"][0], ("train.epochs=1",)
    search = Search("found", recipe, 3.0, 2, 2, 1, (), 3)
    study = replace(STUDY, recipes={"one": STUDY.recipes["one"]}, seeds=1, tuning=None)
    runner = Runner(replace(study, search=search), tmp_path, overrides=SMALL)
    assert runner.run(Reporter()) == 0
    assert sorted(p.name for p in tmp_path.glob("search/*")) == ["env.json", "search.json"]
    best = read_record(tmp_path / "search/search.json")["best"]["schedule"]
    run = read_record(tmp_path / "runs/found-seed0/summary.json")
    assert run["grad_evals_per_image"] <= 3.0
    assert best["name"] in runner.study.labels["found"]
    again = Runner(replace(study, search=search), tmp_path, overrides=SMALL)
    assert again.run(Reporter()) == 0
    assert "found" in again.study.recipes
