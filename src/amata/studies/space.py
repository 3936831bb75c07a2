"""The search space: shape, k_min, k_max and tau of a schedule within a budget."""

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

from amata import recipes
from amata.errors import InputError
from amata.formatting import short_number
from amata.recipes import Recipe
from amata.schedules import Constant, planned_controls
from amata.studies.cost import Prices

SHAPES = ("linear", "exponential", "piecewise")
ETAS = [0.1, 0.3, 1.0, 3.0]
SWITCHES = [0.25, 0.5, 0.75]
TAU_STEP = 0.25
"""tau / eps is a multiple of this, from 1 to 4."""
KEPT = ("step_size_max", "fractional")
"""Keys of the recipe's schedule that trials take over."""
FIXED: dict[str, Any] = {"tau_end": None, "eps_start": 1.0, "sizes": []}
"""Keys of a schedule that trials do not have, with the values that turn them off."""


class Trial(Protocol):
    """The part of optuna's Trial that proposes parameters."""

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...

    def suggest_int(self, name: str, low: int, high: int) -> int: ...

    def suggest_float(self, name: str, low: float, high: float, *, step: float) -> float: ...


@dataclass(frozen=True)
class Space:
    recipe: Recipe
    prices: Prices
    budget: float
    """Gradient evaluations per image and epoch."""
    k_cap: int
    shapes: tuple[str, ...] = SHAPES

    def __post_init__(self) -> None:
        own = self.recipe.tables["schedule"]
        for key, usual in FIXED.items():
            if (own.get(key) or usual) != usual:
                raise InputError(
                    f"a search chooses shape, k_min, k_max and tau; drop schedule.{key}, which its "
                    "trials would not have"
                )
        cheapest = self._constant(1)
        if self.budget < cheapest:
            raise InputError(
                f"a budget of {self.budget:.2f} gradient evaluations per image and epoch is below "
                f"the {cheapest:.2f} of K = 1; raise it"
            )

    @property
    def max_constant_k(self) -> int:
        """The largest constant K within the budget. Where prices are estimates, which may change,
        every K is proposed, and lowered until it fits."""
        if not self.prices.exact:
            return self.k_cap
        return max(k for k in range(1, self.k_cap + 1) if self._fits(self._constant(k)))

    def _constant(self, steps: int) -> float:
        return self.prices(Constant(steps=steps, step_size=self.recipe.ball.eps / steps))

    def _fits(self, cost: float) -> bool:
        return cost <= self.budget + 1e-9

    def cost(self, recipe: Recipe) -> float:
        """Gradient evaluations per image and epoch of a recipe's schedule."""
        return self.prices(recipe.schedule)

    def recipe_params(self) -> dict[str, Any] | None:
        """The recipe's own schedule as trial parameters, or None if it is outside the space."""
        table = self.recipe.tables["schedule"]
        if (
            table["name"] != "linear"
            or "linear" not in self.shapes
            or not 1 <= table["k_min"] <= self.max_constant_k
            or self.recipe.chosen["schedule"].keys() - {*KEPT} != {"name", "k_min", "k_max", "tau"}
        ):
            return None
        share, rise = (
            table["tau"] / self.recipe.ball.eps / TAU_STEP,
            table["k_max"] - table["k_min"],
        )
        if 1 <= share * TAU_STEP <= 4 and abs(share - round(share)) < 1e-6 and rise < self.k_cap:
            return {
                "shape": "linear",
                "k_min": table["k_min"],
                "rise": rise,
                "tau": round(share) * TAU_STEP,
            }
        return None

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """A schedule table within the budget; k_max is lowered until it fits, then k_min too."""
        shape = trial.suggest_categorical("shape", list(self.shapes))
        k_min, rise = (
            trial.suggest_int("k_min", 1, self.max_constant_k),
            trial.suggest_int("rise", 0, self.k_cap - 1),
        )
        tau = trial.suggest_float("tau", 1.0, 4.0, step=TAU_STEP) * self.recipe.ball.eps
        if shape == "exponential":
            eta = trial.suggest_categorical("eta", ETAS)
        elif shape == "piecewise":
            switch = max(
                1, round(trial.suggest_categorical("switch", SWITCHES) * self.recipe.train.epochs)
            )
        for k_max in range(min(k_min + rise, self.k_cap), 0, -1):
            k_min = min(k_min, k_max)
            if shape == "piecewise":
                table = {"name": shape, "stages": [[0, k_min], [switch, k_max]], "tau": tau}
            else:
                table = {"name": shape, "k_min": k_min, "k_max": k_max, "tau": tau} | (
                    {"eta": eta} if shape == "exponential" else {}
                )
            table |= self._kept(shape)
            if self._fits(self.cost(self.recipe_with(table))):
                return table
        raise InputError(
            f"a constant K = 1 exceeds the budget of {self.budget:.2f} gradient evaluations per "
            "image and epoch; raise it"
        )

    def _kept(self, shape: str) -> dict[str, Any]:
        """What trials take over from the recipe's schedule. The stages of a piecewise one are whole
        numbers."""
        own = self.recipe.tables["schedule"]
        kept = {key: own[key] for key in KEPT if own.get(key)}
        return {k: v for k, v in kept.items() if (shape, k) != ("piecewise", "fractional")}

    def recipe_with(self, table: dict[str, Any]) -> Recipe:
        return recipes.parse({**self.recipe.tables, "schedule": table}, self.recipe.name)


def schedule_key(recipe: Recipe) -> str:
    """A hash of the schedule's controls, so equal schedules have equal keys."""
    controls = planned_controls(recipe.schedule, recipe.train.epochs)
    return hashlib.sha256(repr(controls).encode()).hexdigest()[:12]


def describe(table: dict[str, Any]) -> str:
    """A schedule table as text."""
    tau = short_number(table["tau"])
    if table["name"] == "piecewise":
        (_, first), (switch, last) = table["stages"]
        shape, when = "piecewise", f" at epoch {switch}"
    else:
        first, last = table["k_min"], table["k_max"]
        shape, when = table["name"], ""
    if shape == "exponential":
        shape += f" (eta {table['eta']:g})"
    steps = f"constant K {first}" if first == last else f"{shape} K {first} -> {last}{when}"
    return f"{steps}, tau {tau}"
