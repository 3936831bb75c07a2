"""What a person sees: tables and lines in any width, progress, the time left of a study."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.cells import cell_len

import amata
from amata.console import (
    ConsoleReporter,
    PlainConsole,
    audit_table,
    bench_data_table,
    bench_table,
    comparison_table,
    criterion_table,
    err,
    keys_table,
    out,
    results_table,
    search_table,
    sweep_table,
)
from amata.console.grid import Grid
from amata.console.screens import Notebook
from amata.errors import InputError
from amata.metrics import EpochRow
from amata.recipes.reference import sections
from amata.reporter import BatchInfo, Reporter, RunInfo, run_infos
from amata.studies.plan import plan, run_plan
from tests.conftest import ENV, Called, images, labels, small_net
from tests.toy import QUICK

WIDTHS = pytest.mark.parametrize("width", [60, 80, 120])


def lines_of(table: Grid, width: int) -> list[str]:
    console = PlainConsole()
    console.width = width
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


# Tables with long names and large numbers

ATTACKS = ("clean", "pgd-50-10", "cw-pgd-20", "autoattack@1000")
PARAMS = {"norm": "linf", "eps": 8 / 255, "steps": 50, "step_size": 0.00784, "restarts": 10}
TRIAL = {
    "cost": 10.25,
    "accuracy": 0.4567,
    "front": True,
    "number": 0,
    "schedule": {"name": "piecewise", "stages": [[0, 2], [20, 5], [40, 10]], "tau": 0.0784},
}


def results() -> Grid:
    one = {"accuracy": 1.0, "low": 0.9963, "high": 1.0, "n": 50_000, "non_finite": 12_345}
    return results_table(
        {name: {**one, "grad_evals": 25_123_456, "params": PARAMS} for name in ATTACKS}
    )


def audit() -> Grid:
    one = {"accuracy": 1.0, "low": 0.9963, "high": 1.0, "n": 50_000, "grad_evals": 25_123_456}
    return audit_table({name: {**one, "seconds": 12_345.6} for name in (*ATTACKS, "worst case")})


def comparison() -> Grid:
    accuracy = {"accuracy": 0.4591, "low": 0.4467, "high": 0.4715, "split": "held-out"}
    row = {
        "accuracies": dict.fromkeys(ATTACKS, accuracy),
        "train_seconds": 123_456.7,
        "grad_evals": 1_281_167_000,
        "time_to_target": 12_345.6,
        "speedup": 12.34,
    }
    names = ("cifar10-1m", "an-own-recipe-with-a-name-that-is-too-long-for-a-table")
    return comparison_table(
        {
            "attacks": ATTACKS,
            "target": 0.45,
            "images": [1_000, 10_000],
            "valid_n": 5_000,
            "times_comparable": False,
            "rows": [{"recipe": name, **row} for name in names],
        }
    )


def criterion() -> Grid:
    row = {
        "strategy": "mnist5k-pgd40-with-a-long-name",
        "c": 123.456,
        "c_stderr": 0.123,
        "c_gain": 234.567,
        "c_price": -111.111,
        "fosc": 0.123,
        "feasible_gap": 0.012,
        "robust_accuracy": 0.894,
        "robust_attack": "pgd-40-10",
        "train_seconds": 12_345.6,
        "grad_evals": 41_800_000,
    }
    return criterion_table([row, {**row, "strategy": "short"}])


def sweep() -> Grid:
    at = {"gamma": 0.04, "c": 123.456, "c_price": -111.111}
    found = [at, {**at, "gamma": 0.0}, {**at, "gamma": 0.01}, {**at, "gamma": 0.16}]
    return sweep_table([{"strategy": "mnist5k-pgd40-with-a-long-name", "sweep": found}])


def search() -> Grid:
    return search_table({"attack": "cw-pgd-20", "best": TRIAL, "trials": [TRIAL]})


def bench() -> Grid:
    row = {
        "recipe": "cifar10-1m",
        "batch": 1024,
        "steps": 10,
        "variant": "reference-train-bn",
        "seconds_per_epoch": 123.45,
        "images_per_second": 123_456.7,
        "tflops": 345.6,
        "ceiling_share": 0.456,
        "ratio_to_reference": 12.34,
        "compile_seconds": 123.4,
        "peak_memory_bytes": 2**37,
    }
    return bench_table({"rows": [row]})


def bench_data() -> Grid:
    row = {
        "transform": "train",
        "workers": 128,
        "pipeline": "torchvision",
        "images_per_second": 123_456.7,
        "images_per_second_per_core": 1234.5,
        "ratio": 12.34,
    }
    return bench_data_table({"rows": [row]})


def keys() -> Grid:
    return keys_table(
        (k.name, k.default or "-", k.values, k.text) for s in sections() for k in s.keys
    )


TABLES: list[Callable[[], Grid]] = [
    results,
    audit,
    comparison,
    criterion,
    sweep,
    search,
    bench,
    bench_data,
    keys,
]


@WIDTHS
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_a_table_fits_and_keeps_every_number(table: Callable[[], Grid], width: int) -> None:
    grid = table()
    lines = lines_of(grid, width)
    assert max(map(cell_len, lines)) <= width
    for row in grid.rows:
        for column, cell in zip(grid.columns[1:], row[1:], strict=True):
            forms = [cell] if isinstance(cell, str) else list(cell)
            if column.text:  # may be broken between words
                assert " ".join(forms[0].split()) in " ".join(" ".join(lines).split())
            elif cell != "-":
                place = rf"(?<![\d.,]){'|'.join(map(re.escape, forms))}(?![\d.,])"
                assert any(re.search(place, line) for line in lines), cell


def test_a_wide_table_has_exact_numbers_and_one_line_per_row() -> None:
    lines = lines_of(results(), 200)
    assert len(lines) == 1 + len(ATTACKS)
    assert "25,123,456" in lines[1]
    assert "25.12M" in " ".join(lines_of(results(), 60))


@WIDTHS
@pytest.mark.parametrize("words", ["recipes", "recipes keys", "data", "--help", "train --help"])
def test_a_listing_fits(
    words: str, width: int, amata: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(out, "_width", width)
    monkeypatch.setattr(out, "windowed", True)
    lines = amata(*words.split()).out.splitlines()
    lines = [line for line in lines if not line.startswith("data folder ")]  # a path stays whole
    assert len(lines) > 3
    assert max(map(len, lines)) <= width


# Lines of progress

ROW: EpochRow = {
    "epoch": 119,
    "steps": 10,
    "step_size": 2 / 255,
    "loss": 1.23456,
    "train_seconds": 12_345.6,
    "data_seconds": 6_000.0,
    "grad_evals": 1_281_167_000,
    "grad_evals_per_image": 11.0,
    "lr": 0.1,
    "valid": {"clean": 1.0, "cw-pgd-20": 0.456},
    "valid_n": 1000,
}


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (60, ["epoch 120", "clean 100.0%", "cw-pgd-20 45.6%"], ["grads", "alpha", "waiting"]),
        (80, ["epoch 120", "K 10", "loss  1.235", "12345.6 s"], ["grads", "alpha"]),
        (110, ["epoch 120", "12345.6 s", "1.281G grads", "49% waiting for data"], ["alpha"]),
        (120, ["epoch 120", "alpha 2/255", "held-out", "49% waiting for data"], []),
    ],
)
def test_an_epoch_line_fits(
    width: int,
    shown: list[str],
    left_out: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(err, "_width", width)
    monkeypatch.setattr(err, "windowed", width != 120)  # a log leaves nothing out
    ConsoleReporter().epoch(ROW)
    (line,) = capfd.readouterr().err.splitlines()
    assert len(line) <= width or width == 120
    assert all(text in line for text in shown), line
    assert not any(text in line for text in left_out), line


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("amata.console.progress.time", clock)
    return clock


def batch(share: float, epoch: int = 0) -> BatchInfo:
    return BatchInfo(epoch, 4, 1, 10, 2, 0.25, torch.tensor(2.0), share, 77.0)


def test_an_evaluation_names_attack_part_and_time_left(
    clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    reporter = ConsoleReporter()
    reporter.evaluating("pgd-20", 10, 1000)  # a log gets one line a minute
    clock.now += 61
    reporter.evaluating("autoattack", 120, 1000, "fab-t", 45.0)
    line = "evaluating autoattack (fab-t)  120/1000 images  12% done  0:45 left\n"
    assert capfd.readouterr().err == line


def test_a_study_says_which_run_and_the_time_left_of_all(
    clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    """Costs 3 : 1 : 0 (finished) : 4. The first run takes 30 s, so a unit of cost takes 10 s."""
    reporter = ConsoleReporter()
    one, two, three, four = run_infos(["a", "b", "c", "d"], [3, 1, 0, 4])
    reporter.run(one)
    reporter.batch(batch(0.1))
    clock.now += 30
    reporter.run(two)
    clock.now += 10
    reporter.run(three)
    reporter.run(four)
    clock.now += 100
    reporter.batch(batch(0.5, epoch=2))  # resumed in the middle: half of it was done before
    clock.now += 100
    reporter.batch(batch(0.75, epoch=2))
    lines = capfd.readouterr().err.splitlines()
    assert lines[:4] == [
        "run 1 of 4: a",
        "run 2 of 4: b, 0:50 left",
        "run 3 of 4: c, 0:40 left",
        "run 4 of 4: d, 0:40 left",
    ]
    assert lines[-1].startswith("run 4/4  epoch 3/4  batch 1/10  K 2  alpha 0.25  loss 2.000  75%")
    # 240 s for 5 of the 8 units, and 1 is left; 1:17 is the time left of this run alone
    assert lines[-1].endswith(" 0:48 left")


@pytest.mark.slow
def test_the_runs_of_a_comparison_are_counted_by_their_gradients(tmp_path: Path) -> None:
    class Listening(Reporter):
        def __init__(self) -> None:
            self.seen: list[tuple[object, ...]] = []

        def run(self, info: RunInfo) -> None:
            self.seen.append((*info[:3], *(round(share, 2) for share in info[3:])))

    quick = [key for key in QUICK if not key.startswith(("schedule.", "model."))]
    flat = ["model.name=tests.conftest:flat_net", "model.args={side=28}"]
    keys = [*quick, *flat, "train.epochs=1", "eval.limit=10", "eval.attacks=['clean']"]
    planned = plan(["mnist5k-nfgsm", "mnist5k-amata"], keys, 1)
    for finished, shares in ((False, [(0.0, 0.4), (0.4, 0.6)]), (True, [(0.0, 0.0), (0.0, 0.0)])):
        run_plan(planned, tmp_path, listening := Listening())
        names = ("mnist5k-nfgsm-seed0", "mnist5k-amata-seed0")
        expected = [(i + 1, 2, names[i], *shares[i]) for i in range(2)]
        assert listening.seen == expected, finished


def test_notes_and_names_are_printed_literally(capfd: pytest.CaptureFixture[str]) -> None:
    reporter = ConsoleReporter()
    reporter.note("[bold]\x1b[31m")
    reporter.run(run_infos(["[red]"], [1.0])[0])
    assert capfd.readouterr().err == "note: [bold]\\x1b[31m\nrun 1 of 1: [red]\n"


def test_a_sentence_is_broken_between_words_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/a/path/" + "that-is-long/" * 8
    for terminal, lines in ((True, 3), (False, 1)):
        monkeypatch.setattr(err, "_force_terminal", terminal)
        monkeypatch.setattr(err, "_width", 60)
        err.say(f"note: resume {path} after this sentence, which has more words than one line")
        shown = capfd.readouterr().err.splitlines()
        assert len(shown) == lines
        assert sum(path in line for line in shown) == 1, "a path stays whole"


# In Python

BALL = amata.Linf("8/255")
DATA = images(24), labels(24)


def fitted(progress: Any, epochs: int = 2) -> None:
    method, schedule = amata.PGD(ball=BALL), amata.Constant(steps=2, step_size=0.02)
    given = {"epochs": epochs, "batch_size": 8, "progress": progress}
    amata.fit(small_net(), DATA, method=method, schedule=schedule, **given)


class Counting(Reporter):
    """The names of the callbacks, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __exit__(self, *error: object) -> None:
        self.seen.append("exit")

    def start(self, name: str, tables: Any) -> None:
        self.seen.append(f"start {name} {tables['train']['epochs']}")

    def epoch(self, row: EpochRow) -> None:
        self.seen.append("epoch")

    def evaluating(self, attack: str, done: int, total: int, *more: Any) -> None:
        self.seen.append(f"{attack} {done}/{total}")

    def finish(self, summary: Any) -> None:
        self.seen.append(f"finish {summary['epochs']}")


def test_fit_takes_a_bar_silence_a_reporter_or_several(capfd: pytest.CaptureFixture[str]) -> None:
    fitted(False)
    assert capfd.readouterr() == ("", "")
    fitted(True)
    assert len(capfd.readouterr().err.splitlines()) == 2
    calls = ["start pgd 2", "epoch", "epoch", "finish 2", "exit"]
    fitted(counting := Counting())
    assert (counting.seen, capfd.readouterr().err) == (calls, "")
    fitted([True, counting := Counting()])
    assert counting.seen == calls
    assert len(capfd.readouterr().err.splitlines()) == 2
    with pytest.raises(InputError, match=r"fit\(\): progress = 3 must be True, False, an amata"):
        fitted(3)


def test_evaluate_takes_a_bar_silence_a_reporter_or_a_function(
    capfd: pytest.CaptureFixture[str],
) -> None:
    counting, rows = Counting(), []

    def evaluate(progress: Any) -> None:
        amata.evaluate(small_net(), DATA, ball=BALL, attacks=["clean", "fgsm"], progress=progress)

    for progress in (False, True):  # a log gets a line after a minute
        evaluate(progress)
        assert capfd.readouterr() == ("", "")
    evaluate(counting)
    assert [text for text in counting.seen if text != "exit"][-1] == "fgsm 24/24"
    assert counting.seen[-1] == "exit"
    evaluate(lambda *row: rows.append(row[:3]))
    assert rows[-1] == ("fgsm", 24, 24)
    with pytest.raises(InputError, match=r"evaluate\(\): progress = 3 must be True, False"):
        evaluate(3)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the outputs of a notebook's cell show. The IPython kernel itself is tested below."""
    shown: list[str] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        place = len(shown)
        shown.append(bundle["text/plain"])

        def update(bundle: dict[str, str], *, raw: bool) -> None:
            shown[place] = bundle["text/plain"]

        return SimpleNamespace(update=update)

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(err, "is_jupyter", True)
    yield shown
    assert ConsoleReporter.drawing is None


def test_a_notebook_gets_one_output_without_a_flood(notebook: list[str]) -> None:
    fitted(True, epochs=8)
    (text,) = notebook
    lines = text.splitlines()
    assert lines[0] == "(3 earlier epochs)"
    assert [line[:9] for line in lines[1:]] == [f"epoch {i:3d}" for i in range(4, 9)]
    screen = Notebook()
    screen.show("evaluating autoattack (square)  100/1000 images", 0.25, "0:45 left")
    assert notebook[-1].endswith(" 25%  evaluating autoattack (square)  100/1000 images  0:45 left")
    assert max(map(len, notebook[-1].splitlines())) <= 80


def test_an_evaluation_inside_a_training_draws_no_second_bar(notebook: list[str]) -> None:
    class Evaluating(Reporter):
        def epoch(self, row: EpochRow) -> None:
            amata.evaluate(small_net(), DATA, ball=BALL, attacks=["clean"])

    fitted([True, Evaluating()])
    assert len(notebook) == 1


CELL = """
import torch, amata
from tests.test_console import fitted
fitted(True, epochs=8)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ipykernel", "jupyter_client"))),
    reason="needs ipykernel and jupyter_client",
)
def test_a_real_kernel_shows_one_output(tmp_path: Path) -> None:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=arguments, resource_dir=str(tmp_path))
    path = os.pathsep.join([ENV["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    manager.start_kernel(env={**ENV, "PYTHONPATH": path})
    client = manager.client()
    shown: dict[str, str] = {}

    def collect(message: dict[str, Any]) -> None:
        assert message["msg_type"] not in ("stream", "error"), message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            content = message["content"]
            shown[content["transient"]["display_id"]] = content["data"]["text/plain"]

    try:
        client.start_channels()
        client.wait_for_ready(timeout=600)
        client.execute_interactive(CELL, output_hook=collect, timeout=600)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (text,) = shown.values()
    assert text.startswith("(3 earlier epochs)\nepoch   4 ")


# Trackers


@pytest.mark.parametrize(("name", "cls"), [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_a_tracker_that_is_not_installed(
    name: str, cls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"needs the package {name}.*pip install '{name}>="):
        getattr(amata, cls)()


WANDB = """
import amata
from tests.test_console import fitted
class Kept(amata.WandB):
    def finish(self, summary):
        self.kept = self.active
        self.numbers = dict(self.kept.summary)
        super().finish(summary)
fitted([False, logger := Kept(project="mine")])
run = logger.kept
assert run.project == "mine" and run.name == "pgd" and run.config["train"]["epochs"] == 2
assert logger.numbers["loss"] > 0
assert logger.active is None
"""
MLFLOW = """
import mlflow, amata
from tests.test_console import fitted
fitted([False, amata.MLflow(experiment="mine")])
(run,) = mlflow.MlflowClient().search_runs([mlflow.get_experiment_by_name("mine").experiment_id])
assert run.info.status == "FINISHED" and run.info.run_name == "pgd"
assert run.data.params["train.epochs"] == "2" and run.data.metrics["epochs"] == 2
losses = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
assert [point.step for point in losses] == [1, 2]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("wandb", WANDB), ("mlflow", MLFLOW)])
def test_a_tracker_offline(name: str, code: str, tmp_path: Path) -> None:
    """In a process of its own: both change the state of their process."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")
    offline = {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "PYTHONPATH": os.pathsep.join([ENV["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**ENV, **offline},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb" if name == "wandb" else "mlruns/*"))
