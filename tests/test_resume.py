"""Runs that are interrupted or killed end with the same bytes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from amata import recipes
from amata.errors import AmataError, InputError
from amata.metrics import EpochRow
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.lock import Busy, hold
from amata.training import Interrupted
from amata.training.experiment import resume, train
from amata.training.interrupt import Interrupt
from tests.conftest import ENV, Called, dropout_net, small_net
from tests.death import Killed, dying
from tests.disk import Disk
from tests.toy import (
    QUICK,
    STATEFUL,
    StopAt,
    fit,
    newest,
    stateful_recipe,
    toy_data,
    toy_recipe,
    without_times,
)


def test_a_resume_on_other_data_is_refused(tmp_path: Path) -> None:
    from tests.test_data import write_mnist

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_mnist(tmp_path / name, count=12 if name == "a" else 20)
    options = [
        "train.device=cpu",
        "data.valid=2",
        "train.epochs=1",
        'eval.attacks=["clean"]',
        "train.valid_attack=fgsm",
        "train.tensorboard=false",
    ]
    train(recipes.load("mnist-amata", [*options, f"data.root={tmp_path / 'a'}"]), tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match="the data are not those"):
        resume(tmp_path / "run", (f"data.root={tmp_path / 'b'}",))
    resume(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "number", "code"),
    [(2, signal.SIGINT, 130), (6, signal.SIGTERM, 143)],  # in an epoch, and at its end
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_an_interrupt_saves_and_a_resume_ends_with_the_same_bytes(
    tmp_path: Path, batch: int, number: int, code: int, optimizer: str
) -> None:
    recipe = toy_recipe("train.tensorboard=false", "optim.ema=0.9", f"optim.name={optimizer}")
    whole = fit(small_net(), toy_data(), toy_data(40), recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted, match="amata train --resume") as stopped:
        fit(
            small_net(),
            toy_data(),
            toy_data(40),
            recipe,
            run=tmp_path / "cut",
            reporter=StopAt(1, batch, number),
        )
    assert stopped.value.exit_code == code
    run, again = RunFolder.open(tmp_path / "cut")
    assert again.fingerprint() == recipe.fingerprint()
    run.append_row({"epoch": 99})  # type: ignore[arg-type]  # as a kill between a row and its checkpoint would leave
    resumed = fit(small_net(seed=9), toy_data(), toy_data(40), again, run=run)
    for name in ("last.safetensors", "model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.grad_evals == whole.grad_evals
    assert [without_times(r) for r in resumed.epochs] == [without_times(r) for r in whole.epochs]
    assert run.epochs() == resumed.epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", STATEFUL)
def test_a_methods_memory_survives_an_interrupt(tmp_path: Path, name: str) -> None:
    recipe = stateful_recipe(name)
    fit(small_net(), toy_data(90), toy_data(40), recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(
            small_net(),
            toy_data(90),
            toy_data(40),
            recipe,
            run=tmp_path / "cut",
            reporter=StopAt(2, 3),
        )
    run, again = RunFolder.open(tmp_path / "cut")
    fit(small_net(seed=9), toy_data(90), toy_data(40), again, run=run)
    assert (tmp_path / "cut" / "last.safetensors").read_bytes() == (
        tmp_path / "whole" / "last.safetensors"
    ).read_bytes()


def test_states_after_the_last_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.keep_epochs=true")
    fit(small_net(), toy_data(), None, recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / "cut", reporter=StopAt(1, 3))
    (tmp_path / "cut" / "epochs" / "00003.safetensors").write_bytes(
        b"of another trajectory, killed before a checkpoint was there"
    )
    fit(small_net(), toy_data(), None, recipe, run=RunFolder.open(tmp_path / "cut")[0])
    names = sorted(path.name for path in (tmp_path / "whole" / "epochs").iterdir())
    assert sorted(path.name for path in (tmp_path / "cut" / "epochs").iterdir()) == names
    for name in names:
        assert (tmp_path / "cut" / "epochs" / name).read_bytes() == (
            tmp_path / "whole" / "epochs" / name
        ).read_bytes()


def test_an_interrupt_without_a_run_folder_reports_that_nothing_was_saved() -> None:
    with pytest.raises(Interrupted, match="nothing was saved"):
        fit(small_net(), toy_data(), None, toy_recipe(), reporter=StopAt(0, 2))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class StopAfter(Reporter):
    """Sends this process a signal when an epoch, and its checkpoint, are done."""

    def __init__(self, epoch: int, number: int) -> None:
        self.last, self.number = epoch, number

    def epoch(self, row: EpochRow) -> None:
        if row["epoch"] == self.last:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_epoch_is_not_lost(tmp_path: Path, number: int) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.epochs=1")
    whole = fit(small_net(), toy_data(), None, recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted, match=r"training is done and saved.*--resume") as stopped:
        fit(
            small_net(),
            toy_data(),
            None,
            recipe,
            run=tmp_path / "cut",
            reporter=StopAfter(0, number),
        )
    assert stopped.value.exit_code == 128 + number
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert (tmp_path / "cut" / "model.safetensors").is_file()
    run, again = RunFolder.open(tmp_path / "cut")
    resumed = fit(small_net(seed=9), toy_data(), None, again, run=run)
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("error", [None, AmataError("the disk is full")])
def test_a_signal_is_not_lost_whatever_ends_the_block(error: AmataError | None) -> None:
    def block() -> None:
        with Interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
            if error:
                raise error

    with pytest.raises(Interrupted, match=str(error or "interrupted")) as stopped:
        block()
    assert stopped.value.exit_code == 143


def test_a_sweep_does_not_swallow_an_interrupt() -> None:
    """`except Exception` is what sweeps are written with; Ctrl-C must end them."""
    stopping = pytest.raises(KeyboardInterrupt, match="nothing was saved")
    with stopping, contextlib.suppress(Exception):
        fit(small_net(), toy_data(), None, toy_recipe(), reporter=StopAt(0, 1))


HOLDER = """
import os, signal, sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from amata.runs.lock import hold

def stay(_):
    print(os.getpid(), flush=True)
    time.sleep(600)

with hold(Path(sys.argv[1]), "training"):
    loader = DataLoader([0], num_workers=1, worker_init_fn=stay, multiprocessing_context="fork")
    batches = iter(loader)
    time.sleep(600)
"""


def test_the_workers_of_a_killed_process_do_not_keep_its_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        with pytest.raises(Busy, match="another process is training"), hold(tmp_path, "training"):
            pass
        process.kill()
        process.wait()
        try:
            with hold(tmp_path, "training"):
                os.kill(worker, 0)  # it still lives
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_file_that_cannot_be_written_is_one_line(tmp_path: Path, kind: str) -> None:
    lock, precious = tmp_path / "run" / ".lock", tmp_path / "precious"
    lock.parent.mkdir()
    precious.write_text("mine")
    lock.symlink_to(precious) if kind == "link" else lock.mkdir()
    refused = pytest.raises(InputError, match=rf"{lock} (is a symbolic link|\(Is a directory\))")
    with refused, hold(lock.parent, "training"):
        pass
    assert precious.read_text() == "mine"


def test_a_lock_leaves_no_file_and_a_file_of_a_killed_process_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with hold(tmp_path, "training"), pytest.raises(Busy), hold(tmp_path, "training"):
        pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError), hold(tmp_path / "deleted", "training"):
        pass


class Terminated(nn.Module):
    """A network for digits that gets SIGTERM when it first trains."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.sent = dropout_net(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return self.net(x)


def test_the_command_ends_with_one_line_and_the_status_of_the_signal(
    tmp_path: Path, amata: Callable[..., Called]
) -> None:
    options = [*QUICK, "model.name=tests.test_resume:Terminated"]
    sets = [part for text in options for part in ("--set", text)]
    called = amata("train", "mnist5k-amata", *sets, "--out", tmp_path / "run")
    assert called.code == 143
    last = called.err.splitlines()[-1]
    assert last.startswith("interrupted in epoch 1, batch 1; resume with `amata train")


KILLED = {
    "pgd": toy_recipe("optim.ema=0.9", "schedule.k_min=1", "train.tensorboard=false"),
    **{name: stateful_recipe(name) for name in ("free", "atta", "dat")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_run_killed_at_any_change_to_its_folder_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Saved after every batch, killed before every fourth change, resumed. The methods begin
    with different changes, so that together they try all."""
    made, first = KILLED[name], 1 + list(KILLED).index(name)
    train = {**made.tables["train"], "epochs": 2, "save_minutes": 1e-9, "valid_attack": "fgsm"}
    recipe = recipes.parse({**made.tables, "train": train}, name)
    whole = tmp_path / "whole"
    Disk(monkeypatch)
    with dying(whole) as death:
        fit(small_net(), toy_data(48), toy_data(40), recipe, run=whole)
    assert death.changes > 40
    for change in range(first, death.changes + 1, 4):
        cut = tmp_path / f"{change}"
        with dying(cut, change), pytest.raises(Killed):
            fit(small_net(), toy_data(48), toy_data(40), recipe, run=cut)
        run = RunFolder.open(cut)[0] if (cut / "recipe.toml").is_file() else cut
        fit(small_net(seed=9 if newest(cut) else 0), toy_data(48), toy_data(40), recipe, run=run)
        same_run(cut, whole)


@pytest.mark.slow
def test_a_recipe_killed_around_its_training_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the folder is set up, after the last epoch, and before the summary."""
    recipe = recipes.load("mnist5k-amata", [*QUICK, "train.epochs=1"])
    Disk(monkeypatch)
    with dying(tmp_path / "whole") as death:
        train(recipe, tmp_path / "whole")
    for change in (1, 4, 6, death.changes - 6, death.changes):
        cut = tmp_path / f"{change}"
        with dying(cut, change), pytest.raises(Killed):
            train(recipe, cut)
        assert not (cut / "summary.json").is_file()
        if (cut / "recipe.toml").is_file():
            resume(cut)
        else:
            train(recipe, cut)
        same_run(cut, tmp_path / "whole")
        evaluations = [
            json.loads((folder / "summary.json").read_text())["evaluation"]
            for folder in (cut, tmp_path / "whole")
        ]
        for results in evaluations:
            assert results["clean"].pop("seconds") >= 0  # the clock's, not the run's
        assert evaluations[0] == evaluations[1]


def same_run(cut: Path, whole: Path) -> None:
    for name in ("last.safetensors", "model.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), (cut, name)
    cut_rows, whole_rows = (RunFolder(path).epochs() for path in (cut, whole))
    assert [without_times(r) for r in cut_rows] == [without_times(r) for r in whole_rows], cut
