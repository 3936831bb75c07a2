"""What a run leaves in its folder, and who may write there."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from amata import recipes
from amata.errors import InputError
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.runs.checkpoint import save_checkpoint
from amata.tensors import read_tensors
from amata.training.experiment import load_trained, resume, train
from tests.conftest import small_net
from tests.toy import QUICK, fit, toy_data, toy_recipe


def test_images_added_later_are_not_test_images(tmp_path: Path) -> None:
    """The test share of a folder is another one when a file has come: images that were trained on
    would be in it."""
    from tests.test_data import write_folder

    write_folder(tmp_path / "data", parts=("",), per_class=10)
    sizes = [
        "data.resize=16",
        "data.crop=12",
        "data.workers=0",
        "data.batch_size=8",
        'eval.attacks=["clean"]',
        "train.tensorboard=false",
    ]
    small = [
        "model.name=tests.conftest:flat_net",
        "model.args={}",
        "train.epochs=1",
        "train.device=cpu",
        "data.valid=2",
    ]
    train(
        recipes.load(
            "caltech256-pgd20",
            [*sizes, *small, "schedule.steps=1", f"data.root={tmp_path / 'data'}"],
        ),
        tmp_path / "run",
    )
    load_trained(tmp_path / "run", to_test=True)
    bad = load_trained(tmp_path / "run")[2].test.files[0]  # type: ignore[attr-defined]
    good = bad.read_bytes()
    bad.write_bytes(b"no image")
    (tmp_path / "run" / "summary.json").unlink()
    file = tmp_path / "run" / "split.json"
    with pytest.raises(InputError, match=rf"pixels of images changed; restore .* remove {file} "):
        resume(tmp_path / "run")
    with pytest.raises(InputError, match=r"pixels of images changed; restore them, or pass --set"):
        load_trained(tmp_path / "run", to_test=True)
    split = json.loads(file.read_text())
    file.unlink()
    with pytest.raises(
        InputError,
        match=rf"{bad.name}.*; training is done and saved, `amata train --resume .*` evaluates "
        rf"again",
    ):
        resume(tmp_path / "run")
    bad.write_bytes(good)
    file.write_text(json.dumps({k: v for k, v in split.items() if k[0] != "t" and k != "sha256"}))
    resume(tmp_path / "run")
    # what an earlier version left out is written down
    assert json.loads((tmp_path / "run" / "split.json").read_text()) == split
    first = next((tmp_path / "data").glob("*/*.png"))
    shutil.copy(first, first.with_name("00-new.png"))
    with pytest.raises(
        InputError, match=r"images were added or removed; restore them, or pass --set data\.root"
    ):
        load_trained(tmp_path / "run", ("data.workers=1",), to_test=True)
    # nor do its images in memory forget where they were
    with pytest.raises(InputError, match="images were added or removed"):
        load_trained(tmp_path / "run", ("data.in_memory=true",), to_test=True)
    load_trained(tmp_path / "run", (f"data.root={tmp_path / 'data'}",), to_test=True)
    load_trained(tmp_path / "run")  # to export it, say


def test_a_whole_run_leaves_what_it_promises(tmp_path: Path) -> None:
    recipe = recipes.load("mnist5k-amata", [*QUICK, "train.tensorboard=true", "train.epochs=2"])
    run = train(recipe, tmp_path / "run")
    files = {p.name for p in run.path.iterdir()}
    assert files == {
        "recipe.toml",
        "env.json",
        "split.json",
        "metrics.jsonl",
        "model.safetensors",
        "last.safetensors",
        "checkpoints",
        "summary.json",
        "tensorboard",
    }
    rows = run.epochs()
    assert [r["epoch"] for r in rows] == [0, 1]
    assert {
        "steps",
        "step_size",
        "loss",
        "train_seconds",
        "grad_evals",
        "lr",
        "valid",
        "valid_n",
    } <= rows[0].keys()
    summary = json.loads((run.path / "summary.json").read_text())
    assert {"train_seconds", "grad_evals", "best_epoch", "evaluation"} <= summary.keys()
    assert {"accuracy", "n", "low", "high", "grad_evals", "params"} <= summary["evaluation"][
        "clean"
    ].keys()
    assert summary["grad_evals"] == rows[-1]["grad_evals"] == 3960 * (3 + 4)
    split = json.loads((run.path / "split.json").read_text())
    assert len(set(split["valid_ids"])) == split["valid"] == 40
    env = json.loads((run.path / "env.json").read_text())
    assert env["packages"]["torch"] == torch.__version__
    assert list((run.path / "tensorboard").glob("events.*"))
    before = {p: p.stat().st_mtime_ns for p in run.path.rglob("*")}
    resume(run.path)
    assert {p: p.stat().st_mtime_ns for p in run.path.rglob("*")} == before, (
        "a finished run was touched"
    )
    with pytest.raises(InputError, match="exists already"):
        train(recipe, run.path)


def test_kept_epochs_are_the_states_at_the_start_of_epochs(tmp_path: Path) -> None:
    recipe = toy_recipe(
        "method.name=free",
        "train.keep_epochs=true",
        "train.tensorboard=false",
        "train.epochs=2",
        "schedule.k_min=1",
    )
    net = small_net()
    start = {k: v.clone() for k, v in net.state_dict().items()}
    fit(net, toy_data(), None, recipe, run=tmp_path / "run")
    states = [read_tensors(tmp_path / "run" / "epochs" / f"{e:05d}.safetensors") for e in range(3)]
    assert all(torch.equal(states[0][f"model/{k}"], v) for k, v in start.items())
    last = read_tensors(tmp_path / "run" / "last.safetensors")
    assert all(torch.equal(states[2][f"model/{k}"], v) for k, v in last.items())
    assert "memory/noise" not in states[0]
    assert states[1]["memory/noise"].any()


def test_a_run_folder_is_held_while_it_is_trained_in(tmp_path: Path) -> None:
    class Second(Reporter):
        def batch(self, info: BatchInfo) -> None:
            if info.batch == 1 and info.epoch == 0:
                run, recipe = RunFolder.open(tmp_path / "run")
                with pytest.raises(InputError, match="another process is training in"):
                    fit(small_net(), toy_data(), None, recipe, run=run)

    recipe = toy_recipe("train.tensorboard=false", "train.epochs=1")
    fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=Second())


def test_the_best_weights_of_every_kept_checkpoint_stay(tmp_path: Path) -> None:
    """A damaged newest checkpoint may send a run back to the one before, which has another best."""
    run = RunFolder(tmp_path)
    run.checkpoints.mkdir()
    for epoch, best in ((1, 0), (2, 1)):
        record = {"fingerprint": "f", "best_epoch": best}
        save_checkpoint(run.checkpoints, epoch, 0, {"t": torch.ones(1)}, record)
    for epoch in (0, 1, 7):
        run.best_file(epoch).write_bytes(b"%d" % epoch)
    run.promote(1)
    assert (tmp_path / "model.safetensors").read_bytes() == b"1"
    assert [run.best_file(epoch).is_file() for epoch in (0, 1, 7)] == [True, True, False]


@pytest.mark.parametrize("trained", ["row", "checkpoint", None])
def test_a_folder_is_removed_only_if_nothing_was_trained(
    tmp_path: Path, trained: str | None
) -> None:
    run = RunFolder.create(tmp_path / "run", toy_recipe())
    run.write_rows([])  # as a run does before its first epoch
    if trained == "row":
        run.append_row({"epoch": 0})  # type: ignore[arg-type]
    elif trained == "checkpoint":
        (run.checkpoints / "00000-0000003.json").write_text("{}")
    run.remove_if_untrained()
    assert run.path.exists() == (trained is not None)
