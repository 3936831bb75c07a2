"""The criterion study and the schedule search, both resumable."""

import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import Tensor, nn

from amata import recipes
from amata.control import convergence
from amata.control.convergence import Synthetic
from amata.errors import InputError
from amata.losses import ce
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.lock import hold
from amata.schedules import Control
from amata.studies.bench import _rows, _schedule_row
from amata.studies.bench_case import Case, schedule_controls
from amata.studies.bench_peers import PEERS
from amata.studies.cost import Prices
from amata.studies.criterion import (
    CriterionSettings,
    measure_strategies,
    plan_strategies,
    robust_attack,
)
from amata.studies.criterion import strategies as criterion_runs
from amata.studies.pareto import winner, with_front
from amata.studies.plan import plan, run_plan
from amata.studies.search import Search, SearchSettings
from amata.studies.space import Space, describe, schedule_key
from amata.studies.trial import TrialResult
from amata.training.experiment import train
from amata.training.setup import load_data
from tests.conftest import ENV, ROOT, Called, dropout_net
from tests.test_data import write_folder
from tests.toy import QUICK, Notes

Amata = Callable[..., Called]
SHORT = ("train.epochs=2", "optim.ema=0", "data.limit=1000")
FAST = [f"--set={o}" for o in (*QUICK, *SHORT)]
CONSTANT = [f"--set={o}" for o in (*[q for q in QUICK if not q.startswith("schedule")], *SHORT)]


@pytest.mark.slow
def test_toy_prints_the_promised_keys(amata: Amata, tmp_path: Path) -> None:
    called = amata(
        "toy", "--theta0", "0.7", "--tau", "2", "--parts", "30", "--out", tmp_path, "--json"
    )
    assert called.code == 0
    result = json.loads(called.out)
    assert {
        "t",
        "k_closed_form",
        "k_msa",
        "theta",
        "c_optimal",
        "c_constant",
        "c_linear",
    } <= result.keys()
    assert result["k_msa"] == pytest.approx(result["k_closed_form"], rel=0.01)
    assert result["c_optimal"] <= 1e-6 < result["c_linear"] < result["c_constant"]
    assert json.loads((tmp_path / "toy.json").read_text()) == result
    assert (tmp_path / "toy.svg").stat().st_size > 5000
    assert "MSA agrees to" in amata("toy", "--parts", "10").out
    bad = amata("toy", "--theta0", "2", "--tau", "4")
    assert bad.code == 2
    assert bad.err == "error: tau = 4 must be above 1 + theta0^2 = 5 for the closed form to hold\n"


@pytest.mark.slow
def test_convergence_prints_measured_and_bound(
    amata: Amata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With more noise the theorem holds from fewer steps on.
    noisy = partial(convergence.study, Synthetic(spread=4.0))
    monkeypatch.setattr(convergence, "study", noisy)
    called = amata("convergence", "--repeats", "2", "--out", tmp_path, "--json")
    result = json.loads(called.out)
    for row in [*result["over_steps"], *result["over_delta"]]:
        assert row["squares"] <= row["corrected"] <= row["printed"] * (1 + 1e-9)
    equal = {row["schedule"]: row["cost"] for row in result["over_steps"]}
    assert list(result["over_time"]) == ["Amata 2 to 10", "PGD-6", "reversed"]
    assert [equal[name] for name in result["over_time"]] == pytest.approx([6] * 3, rel=0.02)
    for name, curve in result["over_time"].items():
        longest = [row for row in result["over_steps"] if row["schedule"] == name][-1]
        assert 0 < len(curve) <= longest["steps"]
        assert min(curve) <= longest["mean_delta_squared"] <= max(curve)
    assert (tmp_path / "convergence.png").is_file()


@pytest.mark.slow
def test_criterion_and_landscape_stay_in_the_ball_that_was_trained_in(
    amata: Amata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    radii = []

    def seen(*_: Any, ball: Any, **options: Any) -> Any:
        radii.append(ball.eps)
        raise InputError("that is all")

    for name in ("criterion.criterion", "landscape.landscape"):
        monkeypatch.setattr(f"amata.studies.{name}", seen)
    far = ["--set=method.reach=1.5", "--set=train.epochs=1", "--out", tmp_path / "c"]
    assert "that is all" in amata("criterion", "mnist5k-pgd2", *CONSTANT, *far).err
    assert (
        "that is all"
        in amata("landscape", tmp_path / "c" / "runs" / "mnist5k-pgd2", "--out", tmp_path / "l").err
    )
    assert radii == pytest.approx([0.3, 0.3])


@pytest.mark.slow
def test_criterion_trains_measures_and_resumes(amata: Amata, tmp_path: Path) -> None:
    options = [
        *CONSTANT,
        "--set=data.limit=2500",  # with fewer, probing takes the budget
        "--out",
        tmp_path / "c",
        "--batches",
        "2",
        "--alphas",
        "2",
        "--k-max",
        "2",
    ]
    called = amata(
        "criterion",
        "mnist5k-pgd2",
        "mnist5k-adaptive",
        *options,
        "--set=data.batch_size=200",
        "--json",
    )
    assert called.code == 0, called.err
    assert "run 2 of 2: mnist5k-adaptive, " in called.err
    rows = json.loads(called.out)["strategies"]
    assert [r["strategy"] for r in rows] == ["mnist5k-pgd2", "mnist5k-adaptive"]
    for row in rows:
        assert row["c"] * (1 + 1e-9) >= row["c_of_means"] >= 0
        assert {"c_stderr", "robust_accuracy", "train_seconds", "grad_evals"} <= row.keys()
        assert 0 < row["feasible_gap"] < row["fosc"]
        assert len(row["epochs"]) == 2
    assert [e["steps"] for e in rows[0]["epochs"]] == [2, 2]
    assert (tmp_path / "c" / "criterion.svg").is_file()
    # An interrupted study: only the first epoch of one strategy is measured
    file = tmp_path / "c" / "mnist5k-pgd2.criterion.json"
    known = json.loads(file.read_text())
    assert known.pop("sha256")  # a changed number would be noticed
    file.write_text(json.dumps({**known, "epochs": known["epochs"][:1]}))
    again = amata(
        "criterion",
        "mnist5k-pgd2",
        "mnist5k-adaptive",
        *options,
        "--set=data.batch_size=200",
        "--json",
    )
    assert "epoch 1/2" not in again.err.replace("mnist5k-adaptive", "")
    assert json.loads(again.out)["strategies"] == rows
    # Other settings are measured again; a run folder is a strategy too
    run = tmp_path / "c" / "runs" / "mnist5k-pgd2"
    dear = amata(
        "criterion",
        run,
        "--out",
        tmp_path / "d",
        "--gamma",
        "5",
        "--batches",
        "2",
        "--alphas",
        "2",
        "--z",
        "2,0.1",
        "--json",
    )
    (row,) = json.loads(dear.out)["strategies"]
    assert row["epochs"][0]["best_steps"] == 1  # a second step costs too much
    table = amata(
        "criterion",
        run,
        "--out",
        tmp_path / "e",
        "--batches",
        "1",
        "--alphas",
        "1",
        "--search",
        "tpe",
        "--cost",
        "seconds",
    )
    assert "mnist5k-pgd2" in table.out


STAGED = {"fat": "tau = [[0, 0], [1, 9]]", "dat": "dynamic_epochs = 1\nc_max = 1000"}
"""In the first epoch FAT stops at an error and DAT after its second gradient; in the second epoch
both take all their steps."""


@pytest.mark.parametrize("name", STAGED)
def test_probes_are_of_the_epoch_whose_weights_they_measure(name: str, tmp_path: Path) -> None:
    """And another gamma needs no new measurement."""
    file = tmp_path / f"{name}.toml"
    file.write_text(f'extends = "mnist5k-pgd2"\n[method]\nname = "{name}"\n{STAGED[name]}\n')
    sets = [o.removeprefix("--set=") for o in CONSTANT]
    sets += ["data.limit=140", "schedule.steps=3", "eval.limit=2", "train.tensorboard=false"]
    runs = criterion_runs(plan_strategies([str(file)], sets), tmp_path, Reporter())
    settings = CriterionSettings(cost="gradients", batches=1, alphas=1, k_max=1)
    (row,) = measure_strategies(runs, settings, tmp_path, Reporter(), trust=True)
    first, second = (epoch["tried"]["price"][0] for epoch in row["epochs"])
    assert 2 <= first <= 3
    assert 3.9 <= second <= 4
    assert [at["gamma"] for at in row["sweep"]] == [0.04, 0, 0.01, 0.16]
    assert row["sweep"][0]["c"] == row["c"]
    dear, notes = replace(settings, gammas=(7.0, 0.04)), Notes()
    (again,) = measure_strategies(runs, dear, tmp_path, notes, trust=True)
    assert not any("best K" in note for note in notes.notes)
    assert [at["gamma"] for at in again["sweep"]] == [7, 0.04]
    assert again["sweep"][1] == row["sweep"][0]
    assert again["epochs"][0]["best_steps"] == 1  # a step costs too much


BAD: dict[str, tuple[list[str], str]] = {
    "no epochs": (
        ["criterion", "RUN", "--out", "NEW"],
        "has no saved epochs; train it again with --set train.keep_epochs=true",
    ),
    "set on a run": (
        ["criterion", "RUN", "--set=optim.lr=1", "--out", "NEW"],
        "is a trained run; drop --set",
    ),
    "cost": (
        ["criterion", "mnist5k-pgd", "--cost", "euros", "--out", "NEW"],
        "unknown cost 'euros'; choose from gradients, seconds, steps",
    ),
    "search": (
        ["criterion", "mnist5k-pgd", "--search", "random", "--out", "NEW"],
        "unknown search 'random'",
    ),
    "z": (["criterion", "mnist5k-pgd", "--z", "20", "--out", "NEW"], "must be K,ALPHA"),
    "gamma": (
        ["criterion", "mnist5k-pgd", "--gamma", "-1", "--out", "NEW"],
        "must not be negative",
    ),
    "twice": (
        ["criterion", "mnist5k-pgd", "mnist5k-pgd", "--out", "NEW"],
        "two strategies are named 'mnist5k-pgd'",
    ),
    "no budget": (
        ["search", "mnist5k-amata", "--out", "NEW"],
        "pass either --budget SHARE or --grad-evals N",
    ),
    "tiny budget": (
        ["search", "mnist5k-amata", "--budget", "0.1", "--out", "NEW"],
        "is below the 2.00 of K = 1; raise it",
    ),
    "no valid": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--set=data.valid=0", "--out", "NEW"],
        "data.valid is 0; --set data.valid=500",
    ),
    "shape": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--shapes", "cubic", "--out", "NEW"],
        "unknown shape 'cubic'",
    ),
    "objective": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--objective", "luck", "--out", "NEW"],
        "unknown objective 'luck'",
    ),
    "negative share": (
        ["search", "mnist5k-amata", "--budget=-1", "--out", "NEW"],
        "--budget -1 must be a positive fraction",
    ),
    "gamma of a search": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--gamma=-3", "--out", "NEW"],
        "gamma = -3 must not be negative",
    ),
    "damaged study": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--out", "DAMAGED"],
        "is not a readable study",
    ),
    "erm": (
        ["search", "mnist5k-amata", "--budget", "0.9", "--set=method.name=erm", "--out", "NEW"],
        "no schedule to search for",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(amata: Amata, tmp_path: Path, name: str) -> None:
    arguments, message = BAD[name]
    if "RUN" in arguments:
        assert (
            amata(
                "train", "mnist5k-amata", *FAST, "--set=train.epochs=1", "--out", tmp_path / "run"
            ).code
            == 0
        )
    places = {"RUN": tmp_path / "run", "NEW": tmp_path / "new", "DAMAGED": tmp_path / "damaged"}
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.db").write_text("garbage, " * 1000)
    called = amata(*[places.get(a, a) for a in arguments])
    assert called.code == 2
    assert message in called.err.splitlines()[-1]
    assert "Traceback" not in called.err


# The search

SEARCH = [
    "search",
    "mnist5k-amata",
    *FAST,
    "--budget",
    "0.9",
    "--reference-steps",
    "3",
    "--shapes",
    "linear,piecewise",
]


def trials(folder: Path) -> list[Any]:
    import optuna

    study = optuna.load_study(study_name="amata", storage=f"sqlite:///{folder / 'study.db'}")
    return study.get_trials(deepcopy=False)


def finished(folder: Path) -> list[Any]:
    return [t for t in trials(folder) if t.state.name in ("COMPLETE", "PRUNED")]


def under_way(out: Path) -> bool:
    """Whether a trial is done and another has saved its first epoch."""
    saved = [
        f
        for f in out.glob("trials/*/run/checkpoints/00001-*.json")
        if not (f.parents[2] / "result.json").is_file()
    ]
    return bool(saved and list(out.glob("trials/*/result.json")))


@pytest.mark.slow
def test_a_killed_search_resumes_its_study(amata: Amata, tmp_path: Path) -> None:
    out = tmp_path / "study"
    when = [str(int(signal.SIGKILL)), "tests.test_studies:under_way", str(out)]
    command = [sys.executable, "-m", "tests.death", *when, *SEARCH, "--trials", "4"]
    ended = subprocess.run([*command, "--out", str(out)], env=ENV, cwd=ROOT, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    (killed,) = [
        f.parent for f in out.glob("trials/*/run") if not (f.parent / "result.json").is_file()
    ]
    before = [t.number for t in finished(out)]
    called = amata(*SEARCH, "--trials", "4", "--out", out, "--json")
    assert called.code == 0, called.err
    assert "resumed at epoch 2" in called.err  # from its checkpoint, not from the beginning
    result = json.loads(called.out)
    done = finished(out)
    assert len(done) == 4
    assert len({t.user_attrs["key"] for t in done}) == 4
    assert killed.name in {t.user_attrs["key"] for t in done}
    assert set(before) <= {t.number for t in done}
    assert not [t for t in trials(out) if t.state.name == "RUNNING"]
    assert result["best"]["value"] == max(
        t["value"] for t in result["trials"] if t["state"] == "complete"
    )
    best = recipes.load(str(out / "best.toml"))
    assert (
        best.tables["schedule"]
        == recipes.parse(recipes.read_toml(result["toml"], "x"), "x").tables["schedule"]
    )
    assert all(t["cost"] <= 0.9 * 4 + 1e-9 for t in result["trials"])
    assert (out / "pareto.svg").is_file()
    other = amata(*SEARCH[:-1], "linear", "--trials", "4", "--out", out)
    assert other.code == 2
    assert "holds a study with a different shapes" in other.err


class Meeting(nn.Module):
    """A network for digits that does not train before two processes are here: one could have done
    all trials before the other has started."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dropout_net()

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (place := os.environ.get("MEETING")):
            (Path(place) / str(os.getpid())).touch()
            while len(list(Path(place).iterdir())) < 2:
                time.sleep(0.01)
        return self.net(x)


@pytest.mark.slow
def test_two_processes_share_a_study_and_repeat_nothing(tmp_path: Path) -> None:
    out, place = tmp_path / "study", tmp_path / "place"
    place.mkdir()
    command = [
        sys.executable,
        "-m",
        "amata",
        *SEARCH,
        "--set=model.name=tests.test_studies:Meeting",
    ]
    command += ["--trials", "6", "--out", str(out), "--no-prune", "--jobs", "2"]
    env = {**ENV, "MEETING": str(place)}
    ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((out / "search.json").read_text())["best"]["state"] == "complete"
    assert len({t.user_attrs["process"] for t in trials(out)}) == 2
    done = finished(out)
    assert len(done) == 6
    assert len({t.user_attrs["key"] for t in done}) == 6
    assert len(list(out.glob("trials/*/result.json"))) == 6


@pytest.mark.slow
def test_a_result_that_the_study_missed_is_adopted(amata: Amata, tmp_path: Path) -> None:
    """A process killed between result.json and `tell`: the schedule is proposed again, and not
    trained again."""
    out = tmp_path / "study"
    amata(*SEARCH, "--trials", "1", "--out", out)
    (done,) = finished(out)
    with sqlite3.connect(out / "study.db") as db:
        db.execute(
            "update trials set state = 'RUNNING', datetime_complete = null where number = ?",
            (done.number,),
        )
        db.execute(
            "update trial_user_attributes set value_json = ? where key = 'process'",
            (json.dumps(f"{os.uname().nodename}:{2**22 + 1}"),),  # no process has this number
        )
    called = amata(*SEARCH, "--trials", "1", "--out", out)
    assert called.code == 0, called.err
    (adopted,) = finished(out)
    assert adopted.number != done.number
    assert adopted.value == done.value
    assert "epoch" not in called.err.replace("epochs", "")
    import optuna

    study = optuna.load_study(study_name="amata", storage=f"sqlite:///{out / 'study.db'}")
    study.enqueue_trial(adopted.params)  # it is adopted only once
    called = amata(*SEARCH, "--trials", "2", "--out", out)
    assert called.code == 0, called.err
    assert len({t.user_attrs["key"] for t in finished(out)}) == len(finished(out)) == 2


def test_five_failed_trials_in_a_row_stop_the_search(amata: Amata, tmp_path: Path) -> None:
    called = amata(*SEARCH, "--trials", "2", "--out", tmp_path, "--set=optim.lr=1e6")
    assert called.code == 1
    assert called.err.splitlines()[-1].startswith(
        "error: 5 trials in a row failed; the last error: the loss is not finite"
    )
    states = [t.state.name for t in trials(tmp_path)]
    assert set(states) == {"FAIL"}
    assert len(list(tmp_path.glob("trials/*/result.json"))) == 5


def test_the_recipes_own_schedule_is_tried_first_if_it_fits(tmp_path: Path) -> None:
    for options, proposed in (
        (["schedule.k_min=5"], False),
        (["schedule.tau=0.1"], False),
        ([], True),
    ):
        recipe = recipes.load("mnist5k-amata", ["train.device=cpu", *options])
        search = Search(
            recipe, SearchSettings(budget=3.3), tmp_path / str(proposed) / str(options), Reporter()
        )
        assert bool(search.study.get_trials()) == proposed


def test_the_recipes_own_schedule_is_in_the_space_if_a_trial_could_propose_it() -> None:
    recipe = recipes.load("mnist5k-amata", ["schedule.k_min=2", "schedule.k_max=10"])
    params = {"shape": "linear", "k_min": 2, "rise": 8, "tau": 2.5}
    prices = Prices(recipe, load_data(recipe))
    assert Space(recipe, prices, 5.0, k_cap=9).recipe_params() == params
    assert Space(recipe, prices, 5.0, k_cap=8).recipe_params() is None
    assert Space(recipe, prices, 2.9, k_cap=9).recipe_params() is None


@pytest.mark.slow
def test_a_trial_of_another_process_is_not_trained_twice(amata: Amata, tmp_path: Path) -> None:
    recipe = recipes.load("mnist5k-amata", [o.removeprefix("--set=") for o in FAST])
    settings = SearchSettings(budget=0.9 * 4, k_cap=3, shapes=("linear", "piecewise"), trials=1)
    search = Search(recipe, settings, tmp_path, Reporter())
    trial = search.study.ask()
    key = schedule_key(search.space.recipe_with(search.space.suggest(trial)))
    (tmp_path / "trials" / key).mkdir()
    trial.set_user_attr("key", key)
    with hold(tmp_path / "trials" / key, "training"):
        waiting = amata(*SEARCH, "--trials", "1", "--out", tmp_path)
        assert waiting.code == 0
        assert "other processes are training all trials" in waiting.err
        search.study.enqueue_trial(trial.params)
        assert amata(*SEARCH, "--trials", "2", "--out", tmp_path).code == 0
        (done,) = finished(tmp_path)
        assert done.user_attrs["key"] != key
    amata(*SEARCH, "--trials", "2", "--out", tmp_path)  # its owner is gone
    assert key in {t.user_attrs["key"] for t in finished(tmp_path)}


@pytest.mark.slow
def test_trials_of_dead_processes_do_not_count(amata: Amata, tmp_path: Path) -> None:
    """Three processes were killed: two before they had chosen a schedule, one while a worker of it
    still holds the lock."""
    recipe = recipes.load("mnist5k-amata", [o.removeprefix("--set=") for o in FAST])
    settings = SearchSettings(budget=0.9 * 4, k_cap=3, shapes=("linear", "piecewise"))
    search = Search(recipe, settings, tmp_path, Reporter())
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for key in (None, None, "locked"):
        trial = search.study.ask()
        trial.set_user_attr("process", f"{os.uname().nodename}:{dead.pid}")
        if key:
            trial.set_user_attr("key", key)
    (tmp_path / "trials" / "locked").mkdir()
    with hold(tmp_path / "trials" / "locked", "training"):
        called = amata(*SEARCH, "--trials", "1", "--out", tmp_path, "--json")
    assert called.code == 0, called.err
    assert [t["state"] for t in json.loads(called.out)["trials"]] == ["complete"]
    assert "run 1 of 1: trial 3, " in called.err
    assert len(finished(tmp_path)) == 1


FINISHED = (
    '{"trial": 0, "state": "COMPLETE", "accuracy": "0.5", "value": 0.5, "grad_evals": 1, '
    '"cost": 2.0}'
)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"trial": "x"}', FINISHED, FINISHED.replace('"0.5"', '0.5, "x": 1')]
)
def test_a_damaged_result_of_a_trial_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(
        InputError, match=r"result.json is damaged \(.*\); delete .* to train it again"
    ):
        TrialResult.read(tmp_path)


SEARCHED = recipes.load("mnist5k-amata", ["train.device=cpu"])


@pytest.mark.parametrize("name", ["a?b=c", "a%20b", "a{b}", "a#b"])
def test_a_study_stays_in_its_folder_whatever_its_name(name: str, tmp_path: Path) -> None:
    """The database was opened by a URL: a question mark ended its path."""
    search = Search(SEARCHED, SearchSettings(budget=3), tmp_path / name, Reporter())
    assert search.study.user_attrs["about"]
    assert {p.name for p in tmp_path.iterdir()} == {name}
    assert {p.name for p in (tmp_path / name).iterdir()} == {"trials", "study.db"}


@pytest.mark.parametrize(
    "attributes",
    [
        {"key": 3},
        {"key": "../x"},
        {"process": 3},
        {"process": "vm:99999999999999999999"},
        {"accuracy": "0.5"},
        {"cost": []},
        {"schedule": 3},
        {"accuracy": 0.5},  # and nothing else
    ],
)
def test_a_strangers_study_is_one_line(attributes: dict[str, Any], tmp_path: Path) -> None:
    search = Search(SEARCHED, SearchSettings(budget=3), tmp_path, Reporter())
    trial = search.study.ask()
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    if attributes == {"accuracy": 0.5}:
        search.study.tell(trial, 0.5)
    with pytest.raises(InputError, match=r"study\.db is not a readable study"):
        Search(SEARCHED, SearchSettings(budget=3), tmp_path, Reporter())


@pytest.mark.parametrize("name", ["study.db", "trials", "study.db-journal"])
def test_a_search_does_not_write_through_links(name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"{name} is a symbolic link"):
        Search(SEARCHED, SearchSettings(budget=3), tmp_path / "out", Reporter())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["runs", "runs/mnist5k-pgd2-seed0"])
def test_a_study_does_not_train_through_links(name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"{name} is a symbolic link"):
        run_plan(plan(["mnist5k-pgd2"], [], 1), out, Reporter())
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("criterion.json", "{", "; delete it, or choose another folder"),
        ("criterion.json", '{"strategies": 1}', "; delete it, or choose another folder"),
        ("mnist5k-pgd2.criterion.json", "[]", "; delete it to measure mnist5k-pgd2"),
        (
            "criterion.json",
            '{"settings": {"k_max": 2}, "strategies": []}',
            "holds the criterion of other strategies or settings; choose another folder",
        ),
        (
            "criterion.json",
            json.dumps(
                {
                    "settings": CriterionSettings().to_dict(2),
                    "strategies": [
                        {"strategy": "mnist5k-amata", "c": 1.0, "c_stderr": None, "epochs": []}
                    ],
                }
            ),
            "holds the criterion of other strategies or settings; choose another folder",
        ),
    ],
)
def test_other_or_damaged_results_are_found_before_the_training(
    file: str, text: str, message: str, amata: Amata, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(text)
    called = amata("criterion", "mnist5k-pgd2", "--out", tmp_path)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert message in called.err
    assert (tmp_path / file).read_text() == text
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_search_can_minimise_c(amata: Amata, tmp_path: Path) -> None:
    called = amata(
        *SEARCH, "--trials", "2", "--objective", "criterion", "--out", tmp_path, "--json"
    )
    assert called.code == 0, called.err
    result = json.loads(called.out)
    values = [t["value"] for t in result["trials"]]
    assert result["best"]["value"] == min(values)
    assert values == [
        json.loads(f.read_text())["strategies"][0]["c"]
        for t in result["trials"]
        for f in (tmp_path / "trials" / t["key"]).glob("criterion.json")
    ]


def stops_early(name: str, *more: str) -> Prices:
    """The prices of a method whose samples stop early, on a few digits."""
    options = [f"method.name={name}", "data.limit=120", "data.batch_size=20", "data.valid=40"]
    options += ["train.device=cpu", "train.epochs=4", "schedule.k_max=8"]
    options += ["model.name=tests.conftest:dropout_net", *more]
    recipe = recipes.load("mnist5k-amata", options)
    return Prices(recipe, load_data(recipe))


def test_a_price_is_what_a_method_costs() -> None:
    for method, base in (
        ("pgd", 1),
        ("free", 0),
        ("trades", 2),
        ("nuat", 2),
        ("yopo", 0),
        ("fast", 1),
    ):
        recipe = recipes.load("mnist5k-amata", [f"method.name={method}", "train.device=cpu"])
        prices = Prices(recipe, load_data(recipe))
        assert prices.exact
        assert prices(recipe.schedule) == pytest.approx(5.6 + base), method
    weak = recipes.load("mnist5k-amata-fast", ["train.device=cpu"])
    assert Prices(weak, load_data(weak))(weak.schedule) == 2.0


@pytest.mark.parametrize("name", ["fat", "dat"])
def test_a_price_is_measured_where_samples_stop_early(name: str) -> None:
    """FAT was refused, and DAT had the price of an attack that never stops."""
    prices = stops_early(name)
    assert not prices.exact
    strong = Control(8, 0.05)
    first, last = (prices.epoch(epoch, strong) for epoch in (0, 3))
    assert 2 <= min(first, last) <= max(first, last) <= 9
    assert min(first, last) < 8.9, "some samples have stopped"
    rows: Any = [
        {"epoch": 2, "steps": 8, "step_size": 0.05, "grad_evals": 900, "grad_evals_per_image": 7.5}
    ]
    prices.learn(rows)
    assert prices.epoch(2, strong) == pytest.approx(7.5)
    assert prices.epoch(0, strong) > first, "of a neighbouring epoch, corrected too"
    assert prices.epoch(2, Control(1, 0.4)) == 2, "one step is exact"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fat", "dat"])
def test_an_estimated_price_is_near_what_training_spends(name: str, tmp_path: Path) -> None:
    """And equals it once that training has corrected it."""
    options = [f"method.name={name}", "data.limit=600", "data.batch_size=40", "data.valid=40"]
    options += ["train.device=cpu", "train.epochs=4", "schedule.k_max=8", "train.guard=ignore"]
    options += ["train.tensorboard=false", "train.valid_attack=pgd-1", "eval.limit=20"]
    recipe = recipes.load("mnist5k-amata", [*options, 'eval.attacks=["clean"]'])
    prices = Prices(recipe, load_data(recipe))
    run = train(recipe, tmp_path / "run")
    spent = run.summary()["grad_evals_per_image"]
    most = 1 + statistics.mean(row["steps"] for row in run.epochs())
    assert spent < 0.95 * most, "some samples have stopped"
    assert prices(recipe.schedule) == pytest.approx(spent, rel=0.4)
    prices.learn(run.epochs())
    assert prices(recipe.schedule) == pytest.approx(spent)


def test_with_awp_an_update_costs_more_after_its_warm_up() -> None:
    prices = stops_early("fat", "method.awp.gamma=0.01", "method.awp.warmup=2")
    weak = Control(8, 0.05)
    rows: Any = [
        {"epoch": 2, "steps": 8, "step_size": 0.05, "grad_evals": 900, "grad_evals_per_image": 7.5}
    ]
    without = stops_early("fat")
    prices.learn(rows)
    without.learn(rows)
    assert prices.epoch(2, weak) == without.epoch(2, weak) == pytest.approx(7.5)
    # 5.5 of them were attack steps: one fewer than without AWP, relative to what was expected
    assert prices.ratios[2][0] < without.ratios[2][0]


class TooLow(Prices):
    def epoch(self, epoch: int, u: Control[float]) -> float:
        return super().epoch(epoch, u) / 2


@pytest.mark.parametrize("k_max", [2, 3])
def test_a_trial_goes_over_its_budget_by_less_than_one_epoch(k_max: int, tmp_path: Path) -> None:
    """Whatever its price was: no epoch begins once the budget is spent. DAT with c_max = 0 stops no
    sample, and K is 2, 2, then k_max twice: 12 or 14 gradient evaluations where 10 are allowed."""
    options = ["train.device=cpu", "model.name=tests.conftest:dropout_net", "data.limit=120"]
    options += ["data.batch_size=40", "data.valid=40", "train.epochs=4", "train.tensorboard=false"]
    options += [
        "method.name=dat",
        "method.c_max=0",
        f"schedule.k_max={k_max}",
        "train.guard=ignore",
    ]
    recipe = recipes.load("mnist5k-amata", [*options, "train.valid_attack=pgd-1"])
    settings = SearchSettings(budget=2.5, k_cap=3, shapes=("linear",), trials=1, prune=False)
    reporter = Notes()
    search = Search(recipe, settings, tmp_path, reporter)
    search.space = replace(search.space, prices=TooLow(recipe, search.splits))
    if k_max == 3:
        with pytest.raises(InputError, match="has no finished trial"):
            search.run()
        assert "the budget is spent before epoch 4 of 4" in "\n".join(reporter.notes)
    else:
        assert search.run()
    (trial,) = finished(tmp_path)
    run = RunFolder(tmp_path / "trials" / trial.user_attrs["key"] / "run")
    spent = [row["grad_evals"] / 120 for row in run.epochs()]
    assert spent == ([3, 6, 10] if k_max == 3 else [3, 6, 9, 12])
    assert trial.state.name == ("PRUNED" if k_max == 3 else "COMPLETE")
    assert trial.user_attrs["grad_evals"] == 120 * spent[-1]
    assert trial.user_attrs["cost"] == pytest.approx(spent[-1] / len(spent))
    if k_max == 2:
        wall = run.summary()["wall_seconds"]
        assert wall["total"] > wall["train"] > 0


def test_an_interrupted_schedule_is_resumed_under_corrected_prices(tmp_path: Path) -> None:
    """The same parameters may then give another schedule, and the run would begin again."""
    search = Search(SEARCHED, SearchSettings(budget=5, k_cap=6), tmp_path, Reporter())
    trial = search.study.ask()
    table = search.space.suggest(trial)
    trial.set_user_attr("schedule", {**table, "tau": 0.123})
    search._requeue(trial)
    again = search.study.ask()
    assert again.user_attrs == {"schedule": {**table, "tau": 0.123}}
    assert search.space.suggest(again) == table


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"name": "linear", "k_min": 2, "k_max": 4}, "linear K 2 -> 4, tau 20/255"),
        ({"name": "exponential", "k_min": 3, "k_max": 3, "eta": 1}, "constant K 3, tau 20/255"),
        (
            {"name": "exponential", "k_min": 1, "k_max": 4, "eta": 0.3},
            "exponential (eta 0.3) K 1 -> 4, tau 20/255",
        ),
        ({"name": "piecewise", "stages": [[0, 2], [5, 2]]}, "constant K 2, tau 20/255"),
        (
            {"name": "piecewise", "stages": [[0, 1], [5, 3]]},
            "piecewise K 1 -> 3 at epoch 5, tau 20/255",
        ),
    ],
)
def test_a_schedule_is_described_with_tau_as_a_fraction(table: dict[str, Any], text: str) -> None:
    assert describe({**table, "tau": 20 / 255}) == text


def test_a_trial_never_costs_more_than_the_budget() -> None:
    import optuna

    recipe = recipes.load("mnist5k-amata")
    space = Space(recipe, Prices(recipe, load_data(recipe)), budget=5.0, k_cap=10)
    for shape in ("linear", "exponential", "piecewise"):
        for k_min, rise in ((1, 9), (3, 6), (4, 9)):
            fixed = {
                "shape": shape,
                "k_min": k_min,
                "rise": rise,
                "tau": 2.0,
                "eta": 1.0,
                "switch": 0.5,
            }
            table = space.suggest(optuna.trial.FixedTrial(fixed))
            assert 4.4 < space.cost(space.recipe_with(table)) <= 5.0
    with pytest.raises(UserWarning, match="range"):  # a constant K = 5 would cost 6
        space.suggest(
            optuna.trial.FixedTrial({"shape": "linear", "k_min": 5, "rise": 0, "tau": 2.0})
        )


def test_robustness_is_measured_by_the_longest_pgd() -> None:
    results = {
        "clean": {"accuracy": 1.0},
        "pgd-20": {"accuracy": 0.6},
        "pgd-100": {"accuracy": 0.5},
        "cw-pgd-40": {"accuracy": 0.4},
    }
    assert robust_attack(results) == "pgd-100"
    assert robust_attack({"clean": {"accuracy": 1.0}, "fgsm": {"accuracy": 0.5}}) == "fgsm"
    assert robust_attack({"clean": {"accuracy": 1.0}}) is None
    assert robust_attack({"corruptions": {"accuracy": 0.5}}) is None
    with pytest.raises(InputError, match="must be above 0"):
        SearchSettings(budget=0)


def test_an_epoch_trained_twice_is_reported_once() -> None:
    """After a kill between an epoch's row and its checkpoint, the epoch is trained again."""
    from amata.studies.pruning import PruningReporter

    study = optuna.create_study()
    reporter = PruningReporter(study.ask(), "pgd-2", Reporter())
    row: Any = {"epoch": 0, "valid": {"pgd-2": 0.25}}
    reporter.report(row)
    reporter.report(row)
    later: Any = {"epoch": 1, "valid": {"pgd-2": 0.5}}
    reporter.report(later)
    assert reporter.seen == {0: 0.25, 1: 0.5}
    assert study.trials[0].intermediate_values == {0: 0.25, 1: 0.5}


def test_the_front_is_not_dominated_and_the_winner_is_complete() -> None:
    cells = [
        (3, 0.7, "complete"),
        (4, 0.6, "complete"),
        (5, 0.8, "complete"),
        (5, 0.8, "complete"),
        (6, 0.8, "complete"),
        (2, 0.9, "pruned"),
    ]
    rows = [
        {"cost": cost, "accuracy": a, "value": a if state == "complete" else None, "state": state}
        for cost, a, state in cells
    ]
    assert [row["front"] for row in with_front(rows)] == [True, False, True, True, False, False]
    assert winner(rows, highest=True) == rows[2]
    assert winner(rows, highest=False) == rows[1]
    assert winner(rows, highest=True, budget=4) == rows[0]
    assert winner(rows, highest=True, budget=1) == rows[2], "all are over the budget"
    assert winner(rows[-1:], highest=True) is None


def test_a_benchmark_compares_with_the_reference_and_averages_over_the_schedule() -> None:
    recipe = recipes.load("mnist5k-amata", ["schedule.k_max=3", "train.epochs=2"])
    one, two = schedule_controls(recipe)
    case = Case(recipe, 8, (one, two))
    timed = {
        u: {"seconds_per_step": s, "seconds_per_epoch": 10 * s} for u, s in ((one, 1.0), (two, 4.0))
    }
    notes: list[str] = []
    rows = _rows(case, "fast", timed, {one.steps: 2.0}, notes.append)
    assert [row["ratio_to_reference"] for row in rows] == [2.0, None]
    assert "10.00 s/epoch, 2.0 times the reference" in notes[0]
    (mean,) = _schedule_row(case, "fast", timed, notes.append)
    assert mean["seconds_per_epoch"] == 25
    assert _schedule_row(case, "fast", {one: timed[one]}, notes.append) == []


def test_a_benchmark_of_a_folder_takes_its_size_classes_and_images(tmp_path: Path) -> None:
    write_folder(tmp_path, parts=("",), per_class=10)
    options = [f"data.root={tmp_path}", "data.crop=32", "data.resize=32", "model.name=resnet18"]
    case = Case(recipes.load("folder-finetune", options), 2, ())
    assert case.data.shape == (3, 32, 32)
    assert (case.data.classes, case.images) == (2, 16), "a fifth is the test set"
    assert case.batches(torch.device("cpu"), 1)[0].x.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("peer", [p for p in PEERS if p != "torchattacks" or find_spec(p)])
def test_a_peers_loop_trains_with_pgd(peer: str) -> None:
    case = Case(recipes.load("mnist5k-pgd", ["optim.name=sgd", "optim.lr=0.1"]), 16, ())
    (batch,), model = case.batches(torch.device("cpu"), 1), case.model(torch.device("cpu"))
    losses = list[float]()

    def note_loss(module: Any, x: Any, z: torch.Tensor) -> None:
        losses.append(float(ce(z.detach(), batch.y).mean()))

    model.register_forward_hook(note_loss)
    step = PEERS[peer](model, torch.optim.SGD(model.parameters(), 0.1), 0.3)
    for _ in range(8):
        step(batch.x, batch.y, Control(3, 0.1))
    assert len(losses) == 8 * 4, "three steps of attack and one update"
    assert losses[3] > losses[0], "the attack raises the loss"
    assert losses[-1] < losses[3], "the update lowers it"
