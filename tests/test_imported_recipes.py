"""Recipes in Python that commands take by their import path."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amata import recipes
from amata.errors import InputError, Interrupted
from amata.imports import is_import_path
from amata.runs import RunFolder
from amata.training.experiment import train
from tests.conftest import Called
from tests.test_compare import QUICK
from tests.toy import StopAt

OWN = """
from dataclasses import dataclass, replace

import amata


@dataclass(frozen=True, kw_only=True)
class HalfClean(amata.Method):
    reach: float = 1.0

    def step(self, net, batch, u, rng, memory):
        region = self.ball.scaled(self.reach).around(batch.x)
        x_adv = net.ascent(region, region.start(rng, batch.rows), batch.y, u.steps, u.step_size)
        net.backward(x_adv, batch.y)
        net.backward(batch.x, batch.y)
        net.apply()


def rising(epoch, epochs):
    return epoch + 1, 0.1


base = amata.recipes.load("mnist5k-pgd", name="half-clean")
recipe = replace(base, method=HalfClean(ball=base.ball, reach=1.1), schedule=rising)
number = 3
"""
SETS = [part for key in QUICK for part in ("--set", key)]
MODULE = "own_recipes_of_a_test"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the module, which is the working directory."""
    (tmp_path / f"{MODULE}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop(MODULE, None)


def test_commands_train_compare_and_resume_a_recipe_in_python(
    amata: Callable[..., Called], tmp_path: Path
) -> None:
    name = f"{MODULE}:recipe"
    called = amata("train", name, *SETS, "--set", "train.epochs=2", "--out", "run")
    assert called.code == 0, called.err
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert f'class = "{MODULE}.HalfClean"' in recipe
    assert "reach = 1.1" in recipe
    assert [row["steps"] for row in RunFolder(tmp_path / "run").epochs()] == [1, 2]
    assert amata("eval", "run", "--attacks", "fgsm", "--limit", "20").code == 0
    shown = amata("recipes", "show", name)
    assert (shown.code, f'class = "{MODULE}.HalfClean"' in shown.out) == (0, True)
    # An interrupted run needs the object again, and says so.
    loaded = recipes.load(name, [*QUICK, "train.epochs=2"])
    with pytest.raises(Interrupted):
        train(loaded, tmp_path / "cut", StopAt(1, 1))
    refused = amata("train", "--resume", "cut")
    assert refused.code == 2
    assert "or `amata train MODULE:NAME --resume cut`" in refused.err
    assert amata("train", "mnist5k-pgd", "--resume", "cut").code == 2
    resumed = amata("train", name, "--resume", "cut")
    assert resumed.code == 0, resumed.err
    ends = (json.loads((tmp_path / run / "summary.json").read_text()) for run in ("run", "cut"))
    first, second = (end["evaluation"] for end in ends)
    assert {a: r["outcomes"] for a, r in first.items()} == {
        a: r["outcomes"] for a, r in second.items()
    }
    compare = (
        "compare",
        "mnist5k-pgd",
        name,
        *SETS,
        "--set",
        "train.epochs=1",
        "--out",
        "compared",
    )
    compared = amata(*compare)
    assert compared.code == 0, compared.err
    rows = json.loads((tmp_path / "compared" / "compare.json").read_text())["rows"]
    assert [row["recipe"] for row in rows] == ["mnist5k-pgd", "half-clean"]
    again = amata(*compare)
    assert "finished already" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("train", f"{MODULE}:number"),
            f"recipe {MODULE}:number is int, not an amata.Recipe; make",
        ),
        (("train", f"{MODULE}:none"), f"recipe {MODULE}:none cannot be imported (module"),
        (("train", "no_such_module:recipe"), "cannot be imported (No module named"),
        (("train", f"{MODULE}:recipe", "--set", "method.reach=2"), "was made in Python; change it"),
        (
            ("search", f"{MODULE}:recipe", "--budget", "0.5", "--out", "out"),
            "the method and schedule of half-clean, made in Python, cannot be rebuilt for the runs",
        ),
        (
            ("criterion", f"{MODULE}:recipe", "--out", "out"),
            "cannot be rebuilt from a run folder, where C",
        ),
        (
            ("compare", "mnist5k-pgd", f"{MODULE}:recipe", "--jobs", "2", "--out", "out"),
            "the method and schedule of half-clean, made in Python, cannot be rebuilt in the other",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], message: str, amata: Callable[..., Called]
) -> None:
    called = amata(*arguments)
    assert (called.code, called.err.count("\n")) == (2, 1), called.err
    assert message in called.err


def test_a_file_imports_nothing(tmp_path: Path) -> None:
    """A recipe file may be a stranger's."""
    (tmp_path / "stranger.toml").write_text(f'extends = "{MODULE}:recipe"\n')
    for given in (tmp_path / "stranger.toml", {"extends": f"{MODULE}:recipe"}):
        with pytest.raises(InputError, match="unknown recipe"):
            recipes.load(given)
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("a.b:c", True), ("a:c.d", False), ("a:c/d", False), ("./a:c", False), ("a", False)],
)
def test_import_paths_are_told_from_files(text: str, is_one: bool) -> None:
    assert is_import_path(text) == is_one
