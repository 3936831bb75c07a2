"""Runs that are interrupted or killed end with the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amata import recipes
from amata.errors import InputError
from amata.runs import RunFolder
from amata.training import Interrupted
from amata.training.experiment import resume, train
from tests.conftest import small_net
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("batch", [2, 6])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_an_interrupt_saves_and_a_resume_ends_with_the_same_bytes(
    tmp_path: Path, number: int, code: int, batch: int, optimizer: str
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


@pytest.mark.parametrize("name", STATEFUL)
def test_what_a_method_remembers_survives_an_interrupt(tmp_path: Path, name: str) -> None:
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


def test_states_of_epochs_that_a_kill_undid_are_not_kept(tmp_path: Path) -> None:
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


def test_an_interrupt_without_a_run_folder_says_that_nothing_was_saved() -> None:
    with pytest.raises(Interrupted, match="nothing was saved"):
        fit(small_net(), toy_data(), None, toy_recipe(), reporter=StopAt(0, 2))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def kill_and_resume(tmp_path: Path, options: list[str], anywhere: int, after_a_save: int) -> int:
    """Run a recipe whole, and once more with SIGKILLs that leave no chance to tidy up; both must
    end with the same bytes."""
    arguments = [f"--set={o}" for o in [*QUICK, "train.save_minutes=0.003", *options]]
    base = [sys.executable, "-m", "amata", "train"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    # One thread everywhere: a sum's order, and so its last bit, may depend on the number of
    # threads.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(
        [*base, "mnist5k-amata", *arguments, "--out", str(whole)],
        check=True,
        env=env,
        capture_output=True,
    )
    chance = random.Random(0)
    kills = 0
    for _ in range(40):
        saved = newest(cut)
        start = (
            ["--resume", str(cut)]
            if (cut / "recipe.toml").is_file()
            else ["mnist5k-amata", *arguments, "--out", str(cut)]
        )
        process = subprocess.Popen(
            [*base, *start], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if kills < anywhere:  # from the first import on
            time.sleep(chance.uniform(0.5, 4))
        elif kills < anywhere + after_a_save:  # in the thick of it
            deadline = time.monotonic() + 120
            while process.poll() is None and newest(cut) == saved and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.2))
        else:
            process.wait(timeout=300)
        finished = process.poll() is not None
        process.kill()
        _, err = process.communicate()
        if finished:
            assert process.returncode == 0, err
            break
        kills += 1
    for name in ("last.safetensors", "model.safetensors"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    cut_rows, whole_rows = (RunFolder(p).epochs() for p in (cut, whole))
    assert [without_times(r) for r in cut_rows] == [without_times(r) for r in whole_rows]
    return kills


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, ["train.epochs=8"], anywhere=3, after_a_save=4) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["free", "atta", "dat"])
def test_methods_that_remember_survive_being_killed(tmp_path: Path, method: str) -> None:
    assert (
        kill_and_resume(
            tmp_path, ["train.epochs=5", f"method.name={method}"], anywhere=0, after_a_save=2
        )
        == 2
    )
