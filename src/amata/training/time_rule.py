"""The rule of `--within`: how time becomes epochs and attack steps. Its numbers are in
time_rule.toml."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from amata.recipes import Recipe, load
from amata.recipes.length import stretched
from amata.recipes.schema import Train


class Band(NamedTuple):
    """K of the runs that can afford `updates` epochs of plain updates."""

    updates: float
    k_min: int
    k_max: int
    tau: float
    """K alpha; in the rule's file, in eps."""
    epochs: int
    """Up to so many epochs, one more is preferred to a larger K."""
    step_size_max: float | None = None
    """The longest step; in the rule's file, in eps."""
    most_epochs: int | None = None
    """No more epochs than these; None: as the rule says. Time that is left goes into K."""


@dataclass(frozen=True)
class Expected:
    """Robust accuracy as a function of the cost of a run: a - b / updates ** power."""

    recipe: str
    """The stored runs are of this recipe, with other epochs and schedules."""
    attack: str
    a: float
    b: float
    power: float
    step: float
    """What an attack step costs, in updates, where the stored runs were made."""
    half_width: float
    """Half of the 95% interval of a new run."""
    fewest: float
    most: float
    """Updates of the stored runs: nothing is known outside."""

    def accuracy(self, recipe: Recipe, steps: Sequence[float]) -> tuple[float, float, float] | None:
        """The expected accuracy with its interval, for K of every epoch; None where no stored run
        says anything."""
        updates = sum(1 + self.step * k for k in steps)
        own = load(self.recipe)
        if not (self.fewest <= updates <= self.most and are_related(recipe, own)):
            return None
        now, known = (stretched(each, len(steps)).optim for each in (recipe, own))
        if now != known:  # another learning rate
            return None
        middle = self.a - self.b / updates**self.power
        return middle, max(middle - self.half_width, 0.0), min(middle + self.half_width, 1.0)


class Large(NamedTuple):
    """The least K of every band at a radius above `eps`."""

    eps: float
    k_min: int
    k_max: int


class Better(NamedTuple):
    """A recipe that was more robust than another, from so many updates on."""

    recipe: str
    than: str
    updates: float


@dataclass(frozen=True)
class TimeRule:
    aim: float
    """The share of the time that is planned for."""
    tolerance: float
    """K changes in a run that would end further off, as a share of the time."""
    most_epochs: int
    least_epochs: int
    """As in a band, for all other recipes."""
    fitted: dict[str, str]
    """The kind of recipe that the bands were fitted on."""
    bands: tuple[Band, ...]
    large: Large
    expected: Expected | None
    better: Better | None

    def advice(self, recipe: Recipe, updates: float) -> str | None:
        """Another recipe that was more robust in such a time, if one is known."""
        known = self.better
        if known is None or updates < known.updates or not are_related(recipe, load(known.than)):
            return None
        return known.recipe

    def band(self, recipe: Recipe, updates: float) -> Band | None:
        """The band of a run that can afford so many updates; None if the rule does not know such
        recipes."""
        of = {
            "data": recipe.data.name,
            "norm": recipe.ball.norm,
            "method": "awp"
            if "awp" in recipe.tables["method"]
            else recipe.tables["method"]["name"],
        }
        if of != self.fitted:
            return None
        band = [band for band in self.bands if band.updates <= max(updates, 0.0)][-1]
        most, eps, large = band.step_size_max, recipe.ball.eps, self.large
        if eps > large.eps:
            band = band._replace(
                k_min=max(band.k_min, large.k_min), k_max=max(band.k_max, large.k_max)
            )
        return band._replace(tau=band.tau * eps, step_size_max=None if most is None else most * eps)


@cache
def time_rule() -> TimeRule:
    """The rule of this version."""
    return read_rule(resources.files("amata.training").joinpath("time_rule.toml").read_text())


def read_rule(text: str) -> TimeRule:
    raw = tomllib.loads(text)
    bands = tuple(sorted(Band(**band) for band in raw.pop("band")))
    assert bands[0].updates == 0, "the first band must be for any time"
    large, expected = Large(**raw.pop("large")), raw.pop("expected", None)
    better = raw.pop("better", None)
    return TimeRule(
        **raw,
        bands=bands,
        large=large,
        expected=Expected(**expected) if expected else None,
        better=Better(**better) if better else None,
    )


PLANNED = {
    "data": {"root", "workers", "resize", "crop"},  # CIFAR-10 is used as it is
    "schedule": None,
    "optim": {"milestones", "warmup"},
    "train": {*Train.model_fields} - {"attack_mode", "eps_warmup", "accumulate"},
    "eval": None,
}
"""Keys in which runs that are compared may differ; None: the whole table."""


def are_related(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes are the same but for time, schedule, seed and evaluation."""
    return _kept(recipe) == _kept(other)


def _kept(recipe: Recipe) -> dict[str, dict[str, object]]:
    return {
        section: {k: v for k, v in table.items() if k not in (PLANNED.get(section) or ())}
        for section, table in recipe.tables.items()
        if PLANNED.get(section, ()) is not None
    }
