"""Every file of a run folder, damaged in every way: the result is the same, or one line says why
there is none."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest

from amata import recipes
from amata.errors import AmataError
from amata.export import Trained
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.studies.compare import compare_runs
from amata.studies.plan import find_runs
from amata.tensors import read_tensors
from amata.training import Interrupted
from amata.training.evaluations import evaluate_recipe
from amata.training.experiment import resume, train
from amata.training.loaded import load_trained
from tests.test_data import write_mnist
from tests.toy import QUICK, StopAt

Use = Callable[[Path], Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that was interrupted in its second epoch."""
    tmp = tmp_path_factory.mktemp("damage")
    write_mnist(tmp, count=30)
    options = ["data.batch_size=10", "train.epochs=2", "schedule.k_max=2", "schedule.k_min=1"]
    options += ["train.keep_epochs=true", "data.valid=8", "train.valid_attack=fgsm"]
    recipe = recipes.load("mnist-amata", [*QUICK, *options, f"data.root={tmp}"])
    train(recipe, tmp / "finished")
    with pytest.raises(Interrupted):
        train(recipe, tmp / "unfinished", StopAt(1, 2))
    return {name: tmp / name for name in ("finished", "unfinished")}


def flip(seed: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        rng = random.Random(f"{seed} {path.name}")
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    return change


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def wrong(depth: int) -> Any:
    return {"epoch": [wrong(depth - 1)], "evaluation": wrong(depth - 1)} if depth else None


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "folder": folder,
    "list": lambda path: path.write_text("[]"),
    "object": lambda path: path.write_text("{}"),
    "types": lambda path: path.write_text(json.dumps(wrong(10))),
    "deep": lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "newline": lambda path: path.write_bytes(path.read_bytes().rstrip(b"\n")),
    **{f"flip {seed}": flip(seed) for seed in range(3)},
}


TEXT = ("list", "types", "deep", "binary", "newline")
"""Damage that tells more of a text file than of tensors."""


def resumed(run: Path) -> Any:
    resume(run)
    rows, summary = RunFolder(run).epochs(), RunFolder(run).summary()
    assert [row["epoch"] for row in rows] == [0, 1]
    weights = {name: read_tensors(run / f"{name}.safetensors") for name in ("model", "last")}
    return (
        {n: {k: v.tolist() for k, v in w.items()} for n, w in weights.items()},
        [{**row, "train_seconds": 0, "data_seconds": 0, "unix_seconds": 0} for row in rows],
        [summary["recipe"], summary["grad_evals"], summary["best_epoch"]],
        [{**result, "seconds": 0} for result in summary["evaluation"].values()],
    )


def evaluated(run: Path) -> Any:
    model, recipe, splits = load_trained(run, to_test=True)
    results = evaluate_recipe(model, recipe, splits.test, Reporter(), ["clean"])
    return [replace(result, seconds=0.0) for result in results.values()]


def compared(run: Path) -> Any:
    return compare_runs(find_runs([run])[0])


def exported(run: Path) -> Any:
    found = Trained.of(run)
    weights = {name: value.tolist() for name, value in found.weights.items()}
    return found.name, found.recipe.tables, found.summary, weights


USES: dict[str, tuple[Use, ...]] = {
    "finished": (resumed, evaluated, compared, exported),
    "unfinished": (resumed, evaluated),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", USES)
def test_a_damaged_file_is_noticed_or_changes_nothing(
    tmp_path: Path, folders: dict[str, Path], kind: str
) -> None:
    """Each damage of each file meets one of the uses, in turn."""
    run, noticed, uses = tmp_path / "run", set(), cycle(USES[kind])
    whole: dict[Use, Any] = {}
    for use in USES[kind]:
        shutil.copytree(folders[kind], run)
        whole[use] = use(run)
        shutil.rmtree(run)
    files = sorted(p.relative_to(folders[kind]) for p in folders[kind].rglob("*") if p.is_file())
    for path, (name, damage) in product(map(str, files), DAMAGE.items()):
        if path.endswith(".safetensors") and name in TEXT:
            continue
        use = next(uses)
        place = f"{path}: {name}, {use.__name__}"
        shutil.copytree(folders[kind], run)
        damage(run / path)
        try:
            assert use(run) == whole[use], place
        except AmataError as error:
            noticed.add((path, str(error).count("\n")))
        except Exception as error:
            raise AssertionError(place) from error
        shutil.rmtree(run)
    expected = {"recipe.toml", "model.safetensors", "split.json", "env.json"}
    assert {(path, 0) for path in expected} <= noticed
    assert not any(lines for _, lines in noticed)
