"""Several runs of a comparison at the same time: interrupts, dead and failing processes, GPUs."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from amata.errors import InputError, Interrupted
from amata.recipes import load
from amata.reporter import Reporter, RunInfo
from amata.studies.jobs import check_jobs
from amata.studies.plan import run_plan
from tests.conftest import Called, dropout_net
from tests.test_compare import QUICK

RECIPES = ("mnist5k-pgd2", "mnist5k-amata")


class Acting(nn.Module):
    """A network for digits. In the second epoch of a run, the first that comes there, it
    interrupts the process that started all, or kills its own: as the variable ACT says."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.net, self.passes, self.run = dropout_net(), 0, run

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        act, _, mark = os.environ.get("ACT", "").partition(" ")
        if self.passes == {"kill": 8, "interrupt": 3}.get(act):
            with contextlib.suppress(FileExistsError):
                Path(mark).touch(exist_ok=False)
                if act == "kill":
                    checkpoints = Path(mark).parent / "compared" / "runs" / self.run / "checkpoints"
                    while not list(checkpoints.glob("00001-*.json")):  # written by a thread
                        time.sleep(0.01)
                    os.kill(os.getpid(), signal.SIGKILL)
                os.kill(os.getppid(), signal.SIGINT)
                asked = signal.getsignal(signal.SIGTERM)
                while signal.getsignal(signal.SIGTERM) is asked:  # until this one is asked to stop
                    time.sleep(0.01)
        return self.net(x)


class Lines(Reporter):
    """Records what is reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, info: RunInfo) -> None:
        self.lines.append(f"run {info.number} of {info.total}: {info.name}")

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.slow
def test_runs_at_the_same_time_stop_fail_and_resume_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*QUICK, 'eval.attacks=["clean"]', "train.epochs=2", "data.limit=1000"]
    planned = [
        load(
            name,
            [*options, "model.name=tests.test_jobs:Acting", f'model.args={{run = "{name}-seed0"}}'],
        )
        for name in RECIPES
    ]
    # It does not act: it may be ahead of the run that is to be interrupted after it has resumed.
    planned.append(load("mnist5k-pgd", [*options, "optim.lr=1e6"]))
    out, (*names, bad) = tmp_path / "compared", [f"{recipe.name}-seed0" for recipe in planned]

    monkeypatch.setenv("ACT", f"kill {tmp_path / 'killed'}")
    reporter = Lines()
    (finished,), failures = run_plan(planned, out, reporter, jobs=2)
    assert reporter.lines[:2] == [f"run {i + 1} of 3: {name}" for i, name in enumerate(names)]
    assert f"run 3 of 3: {bad}" in reporter.lines
    dead = next(name for name in names if name != finished.path.name)
    assert failures[0] == f"{dead} failed: its process died with status -9", "others go on"
    assert failures[1].startswith(f"{bad} failed: ")
    assert "not finite" in failures[1]
    assert set(failures) < set(reporter.lines)

    monkeypatch.setenv("ACT", f"interrupt {tmp_path / 'interrupted'}")
    text = f"interrupted in .*{dead}.*; progress is saved, repeat the command to resume"
    with pytest.raises(Interrupted, match=text) as told:
        run_plan(planned, out, reporter, jobs=2)
    assert told.value.exit_code == 130

    assert f"{dead}: resumed at epoch 2" in reporter.lines
    assert not (out / "runs" / dead / "summary.json").exists(), "it is left to be resumed"


@pytest.mark.parametrize(
    ("device", "jobs", "visible", "expected"),
    [
        ("auto", 2, None, ["0", "1"]),
        ("cuda", 2, "5,GPU-7,8", ["5", "GPU-7"]),
        ("auto", 4, None, "--jobs 4 needs 4 GPUs, and 3 are visible; lower it"),
        ("cuda:1", 2, None, "--jobs gives each run its own GPU, and train.device = cuda:1"),
        ("cpu", 4, None, [None] * 4),
    ],
)
def test_every_job_has_its_own_gpu(
    device: str,
    jobs: int,
    visible: str | None,
    expected: list[str | None] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    planned = [load("mnist5k-pgd2", [f"train.device={device}"])]
    if isinstance(expected, str):
        with pytest.raises(InputError) as told:
            check_jobs(jobs, planned)
        assert str(told.value).startswith(expected)
        return
    found = check_jobs(jobs, planned)
    assert [own.get("CUDA_VISIBLE_DEVICES") for own in found] == expected
    assert {own["OMP_NUM_THREADS"] for own in found} == {str(9 // jobs)}


def test_a_logger_follows_one_run(amata: Callable[..., Called], tmp_path: Path) -> None:
    out = tmp_path / "out"
    called = amata("compare", *RECIPES, "--jobs", "2", "--log", "mlflow", "--out", out)
    assert called.code == 2
    assert "--log mlflow follows one run at a time; drop it or --jobs" in called.err
    assert not (out / "plan.json").exists()
