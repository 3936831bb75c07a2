"""What a run leaves in its folder, and who may write there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from amata import recipes
from amata.errors import InputError
from amata.recipes import Recipe
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder, folder
from amata.runs.checkpoint import save_checkpoint
from amata.runs.code import different_code
from amata.runs.environment import differences
from amata.runs.records import Environment
from amata.tensors import read_tensors
from amata.training import Interrupted
from amata.training.experiment import resume, train
from amata.training.loaded import load_trained
from tests.conftest import ROOT, small_net
from tests.toy import QUICK, Notes, StopAt, fit, toy_data, toy_recipe


def test_images_that_were_trained_on_do_not_become_test_images(tmp_path: Path) -> None:
    """The test share of a folder may be another one when a file has come or gone: images that were
    trained on would be in it."""
    pytest.importorskip("pyarrow")
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
    notes: list[str] = []
    load_trained(tmp_path / "run", to_test=True, note=notes.append)
    write_folder(tmp_path / "more", parts=("",), per_class=12)
    other = (f"data.root={tmp_path / 'more'}",)
    load_trained(tmp_path / "run", other, to_test=True, note=notes.append)
    assert sum("it may have trained on some of them" in note for note in notes) == 1
    bad = load_trained(tmp_path / "run")[2].test.files[0]  # type: ignore[attr-defined]
    good = bad.read_bytes()
    bad.write_bytes(good[: len(good) // 2])  # its header is whole
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
        match=rf"{bad.name}.*; training is done and saved, `amata train --resume .*` continues ",
    ):
        resume(tmp_path / "run")
    bad.write_bytes(good)
    file.write_text(json.dumps({k: v for k, v in split.items() if k[0] != "t" and k != "sha256"}))
    resume(tmp_path / "run")
    # what an earlier version left out is written down
    assert json.loads((tmp_path / "run" / "split.json").read_text()) == split
    # one more to train on leaves the test images as they are
    new = bad.with_name("00-new.png")
    shutil.copy(bad, new)
    tested = load_trained(tmp_path / "run", to_test=True)[2].test.files  # type: ignore[attr-defined]
    assert new not in tested
    assert bad in tested
    bad.unlink()  # another takes its place
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
    pytest.importorskip("tensorboard")
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
        "evaluations",
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


@pytest.mark.parametrize("trained", ["lock", "row", "checkpoint", None])
def test_a_folder_is_removed_only_if_nothing_was_trained(
    tmp_path: Path, trained: str | None
) -> None:
    run = RunFolder.create(tmp_path / "run", toy_recipe())
    run.write_rows([])  # as a run does before its first epoch
    if trained == "row":
        run.append_row({"epoch": 0})  # type: ignore[arg-type]
    elif trained == "checkpoint":
        (run.checkpoints / "00000-0000003.json").write_text("{}")
    elif trained == "lock":  # of a killed process
        (run.checkpoints / ".lock").touch()
    run.remove_if_untrained()
    assert run.path.exists() == (trained in ("row", "checkpoint"))


def interrupted(path: Path, recipe: Recipe | None = None) -> RunFolder:
    """A run that was interrupted in its second epoch."""
    recipe = recipe or toy_recipe("train.tensorboard=false", "train.epochs=2")
    with pytest.raises(Interrupted):
        fit(small_net(), toy_data(48), toy_data(40), recipe, run=path, reporter=StopAt(1, 2))
    return RunFolder(path)


def again(path: Path, reporter: Reporter | None = None) -> None:
    run, recipe = RunFolder.open(path)
    fit(small_net(), toy_data(48), toy_data(40), recipe, run=run, reporter=reporter)


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: b"",
        lambda rows: rows.rstrip(b"\n"),
        lambda rows: rows[:-9],
        lambda rows: rows.replace(b'"steps": ', b'"steps": 7'),
        lambda rows: rows + b'{"epoch": 99',
    ],
)
def test_metrics_are_repaired_from_the_checkpoint(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    run = interrupted(tmp_path / "run")
    rows = run.metrics.read_bytes()
    run.metrics.write_bytes(damage(rows))
    again(run.path)
    assert run.metrics.read_bytes().startswith(rows)
    assert [row["epoch"] for row in run.epochs()] == [0, 1]


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "epochs", "tensorboard"])
def test_a_run_does_not_write_through_links(tmp_path: Path, name: str) -> None:
    run, outside = interrupted(tmp_path / "run"), tmp_path / "outside"
    if (run.path / name).exists():
        (run.path / name).rename(outside)
    else:
        outside.mkdir()
    (run.path / name).symlink_to(outside)
    for part in (".metrics.jsonl.part", ".env.json.part", ".last.safetensors.part"):
        (run.path / part).symlink_to(tmp_path / "bashrc")
    with pytest.raises(InputError, match=rf"{name} is a symbolic link"):
        again(run.path)
    (run.path / name).unlink()
    if name in ("checkpoints", "metrics.jsonl"):
        outside.rename(run.path / name)
    again(run.path)
    assert not (tmp_path / "bashrc").exists()


def test_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    run = interrupted(tmp_path / "run")
    parts = [run.path / ".env.json.0123abcd.part", run.checkpoints / ".best-1.0123abcd.part"]
    for part in parts:
        part.write_bytes(b"half")
    again(run.path)
    assert not any(part.exists() for part in parts)


def test_every_start_is_recorded_with_its_environment(tmp_path: Path) -> None:
    run = interrupted(tmp_path / "run")
    before = (run.path / "env.json").read_bytes()
    toml = (run.path / "recipe.toml").read_text()
    RunFolder.create(tmp_path / "other", toy_recipe("train.epochs=3"))
    shutil.copy(tmp_path / "other" / "recipe.toml", run.path)
    with pytest.raises(InputError, match="belongs to another recipe"):
        again(run.path)
    assert (run.path / "env.json").read_bytes() == before, "a refused resume"
    (run.path / "recipe.toml").write_text(toml)
    listen = Notes()
    torch.set_num_threads(2)
    try:
        again(run.path, listen)
    finally:
        torch.set_num_threads(1)
    first, second = run.environments()
    assert (first["threads"], second["threads"]) == (1, 2)
    (note,) = (text for text in listen.notes if "the last bits" in text)
    assert "resumed with CPU threads 2, before 1" in note
    other: Environment = {**first, "device": "gpu", "packages": {"torch": "9.9"}}
    assert differences(first, first) == []
    (changed,) = differences(first, other)
    assert f"device gpu, before cpu; torch 9.9, before {torch.__version__}:" in changed
    code: list[dict[str, str]] = [{"mine.A": "1"}, {"mine.A": "2", "mine.B": "3"}, {"mine.C": "4"}]
    assert different_code([*code, {}]) == ["mine.A"]


def test_an_environment_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    for file in sorted(ROOT.glob("evidence/results/paper/*/runs/*/env.json"))[:3]:
        shutil.copy(file, tmp_path / "env.json")
        assert RunFolder(tmp_path).environments() == [json.loads(file.read_text())]


@pytest.mark.parametrize("change", [("epochs = 2", "epochs = 7"), ("mnist5k-amata", "mnist5k-b")])
def test_a_changed_recipe_is_noticed(tmp_path: Path, change: tuple[str, str]) -> None:
    run = RunFolder.create(tmp_path / "run", toy_recipe("train.epochs=2"))
    file = run.path / "recipe.toml"
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(InputError, match=r"recipe\.toml was changed after the run began"):
        RunFolder.open(run.path)
    text = file.read_text()
    file.write_text(text[: text.index("[train]")])  # it still parses
    with pytest.raises(InputError, match=r"recipe\.toml was changed after the run began"):
        RunFolder.open(run.path)


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "ROWS", 10)
    run = RunFolder(tmp_path)
    run.metrics.write_text("{}\n" * 12)
    with pytest.raises(InputError, match="too many to read"):
        run.epochs()


def test_a_hint_quotes_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my run"
    RunFolder.create(path, toy_recipe())
    with pytest.raises(InputError, match=r"--resume '.*my run'`"):
        RunFolder.check_free(path)
