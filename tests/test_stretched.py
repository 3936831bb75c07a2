"""Recipes with another number of epochs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import amata
from amata import recipes
from amata.errors import InputError
from amata.methods import PGD
from amata.recipes.length import stretched
from amata.recipes.schema import Optim
from amata.runs import RunFolder
from amata.schedules import Control, Piecewise
from amata.threat import Linf
from amata.training import fit
from amata.training.time_rule import time_rule
from tests.conftest import small_net
from tests.toy import QUICK, toy_data


def test_what_is_counted_in_epochs_keeps_its_share() -> None:
    def of(name: str, epochs: int) -> Any:
        return recipes.load(name, epochs=epochs)

    assert of("cifar10-amata-quick", 38).optim.warmup == 3
    assert of("cifar10-amata", 10).optim.milestones == [7.5, 9]
    assert of("cifar10-amata", 1).optim.milestones == [0.75, 0.9]
    assert of("cifar10-dat", 10).method.dynamic_epochs == 8
    assert of("cifar10-nuat", 10).method.rise == 9
    awp = of("cifar10-awp", 10)
    assert time_rule().band(awp, 10.0) is None, "fitted on PGD without AWP"
    assert of("cifar10-fat", 4).method.tau[0][0] == 0
    warm = recipes.load("mnist5k-amata", ["train.eps_warmup=5"])
    assert stretched(warm, 2).train.eps_warmup == 1
    staged = replace(warm, schedule=Piecewise(stages=[(0, 1), (4, 2), (5, 3)], tau=0.5))
    assert stretched(staged, 20).schedule.stages == ((0, 1), (8, 2), (10, 3))  # type: ignore[union-attr]
    assert stretched(staged, 1).schedule.stages[0][0] == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "epochs", "milestones"),
    [
        ("cifar10-amata-quick", 19, [17]),
        ("cifar10-amata-quick", 165, [163]),
        ("cifar10-amata", 120, [95, 110]),
    ],
)
def test_longer_runs_have_no_more_epochs_with_a_low_learning_rate(
    name: str, epochs: int, milestones: list[float]
) -> None:
    """165 epochs, of which 17 had one, ended with less robustness than 19."""
    assert recipes.load(name, epochs=epochs).optim.milestones == milestones


def test_overrides_are_not_stretched() -> None:
    given = {"optim.milestones": [4], "schedule.k_max": 6, "data.limit": 99}
    recipe = recipes.load("cifar10-amata", given, epochs=5)
    assert (recipe.train.epochs, recipe.optim.milestones, recipe.data.limit) == (5, [4], 99)
    assert recipe.name == "cifar10-amata"
    assert recipes.load("cifar10-amata", {"train.epochs": 5}).optim.milestones == [75, 90]
    with pytest.raises(InputError, match="epochs are given twice"):
        recipes.load("cifar10-amata", train={"epochs": 5}, epochs=5)
    with pytest.raises(InputError, match="epochs = 0 must be"):
        recipes.load("cifar10-amata", epochs=0)


def test_a_run_is_a_record_of_its_own_epochs() -> None:
    """Epochs that a given time chose are not those of a longer run, and counts are no sizes."""
    planned = recipes.load("mnist5k-amata", ["train.within=20", "train.eps_warmup=4"])
    longer = recipes.load(planned.tables, epochs=40)
    assert (planned.train.within, longer.train.within) == (20, None)
    text = replace(longer, train=longer.train.model_copy(update={"eps_warmup": 16 / 3})).to_toml()
    assert "eps_warmup = 5.33" in text
    one, two = (recipes.load("mnist5k-nuat", epochs=n).method for n in (1, 2))
    assert (one.rise, two.rise) == (0, 1), "lambda reaches its weight"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Rising:
    """A user-defined schedule, which no table can name."""

    def __call__(self, epoch: int, epochs: int) -> Control[float]:
        return Control(1 + epoch * 2 // epochs, 0.1)


def test_train_stretches_a_recipe_with_a_schedule_of_the_users(tmp_path: Path) -> None:
    recipe = replace(recipes.load("mnist5k-amata", QUICK), schedule=Rising())
    run = amata.train(recipe, tmp_path / "run", epochs=2, progress=False)
    assert [row["steps"] for row in run.epochs()] == [1, 2]


def test_fit_stretches_its_recipe_and_not_its_arguments(tmp_path: Path) -> None:
    optim = {"lr_schedule": "piecewise", "milestones": [8]}
    recipe = {"extends": "mnist5k-amata", "optim": optim}

    def milestones(**given: Any) -> list[float]:
        run = tmp_path / str(len(list(tmp_path.iterdir())))
        data = toy_data()
        fit(small_net(), data, recipe=recipe, epochs=2, run=run, progress=False, **given)
        found = RunFolder.open(run)[1]
        assert found.train.epochs == 2
        return found.optim.milestones

    assert milestones() == [1.6]
    assert milestones(method=PGD(ball=Linf(0.1))) == [1.6]
    assert milestones(optim=Optim(lr_schedule="piecewise", milestones=[1])) == [1]
