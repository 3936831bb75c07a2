"""Epochs and attack steps that fit into a given time: a pure function of prices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amata.errors import InputError
from amata.methods import METHODS, planned_evals
from amata.quantity import in_time, round_half_up
from amata.recipes import Recipe
from amata.schedules import (
    Control,
    Linear,
    Piecewise,
    closed_loop,
    largest_control,
    planned_controls,
)
from amata.training.time_rule import TimeRule


@dataclass(frozen=True)
class Prices:
    """Seconds that were measured on this device, for this model and these data."""

    update: float
    """An epoch with K = 0."""
    step: float
    """One more attack step, in every batch of an epoch."""
    epoch: float
    """Once an epoch: validation, collapse guard, checkpoint."""
    spent: float = 0.0
    """Before training: start, data, compiling, measuring."""
    spread: float = 0.0
    """How far the prices may be off, as a share."""

    def training(self, steps: float) -> float:
        """An epoch under K attack steps, without validation."""
        return self.update + self.step * steps

    def total(self, steps: Sequence[float]) -> float:
        """Epochs with these K, with what comes once an epoch."""
        return sum(map(self.training, steps)) + self.epoch * len(steps)


@dataclass(frozen=True)
class TimePlan:
    """What a run does within a given time, and what that is expected to take."""

    recipe: Recipe
    """With the epochs, the schedule and the learning rate's milestones that fit."""
    within: float
    prices: Prices
    steps: tuple[int, ...]
    """K of every epoch."""
    range: tuple[int, int] | None
    """Between which K may be chosen; None if only the epochs are."""
    accuracy: tuple[str, float, float, float] | None = None
    """An attack, the expected accuracy under it and its 95% interval; None if nothing is known."""

    @property
    def training(self) -> float:
        return sum(map(self.prices.training, self.steps))

    @property
    def validation(self) -> float:
        return self.prices.epoch * len(self.steps)

    @property
    def seconds(self) -> float:
        """From the start of the command to the trained model on the disk."""
        return self.prices.spent + self.training + self.validation

    @property
    def interval(self) -> tuple[float, float]:
        """The time by the cheapest and the dearest prices that were measured."""
        off = self.prices.spread * (self.training + self.validation)
        return self.seconds - off, self.seconds + off


def plan_within(
    recipe: Recipe, prices: Prices, within: float, rule: TimeRule, *, keep_schedule: bool = False
) -> TimePlan:
    """The longest run that ends within the time, by the rule. A schedule that is kept, as one that
    the user gave, stays as it is; then only the epochs are chosen."""
    check_plannable(recipe)
    left = rule.aim * within - prices.spent
    schedule = recipe.schedule
    band = None if keep_schedule else rule.band(recipe, left / prices.update)
    if band is not None:
        lowest, highest = band.k_min, band.k_max
        tau = band.tau * recipe.ball.eps
    elif isinstance(schedule, Linear) and not keep_schedule and depends_on_steps(recipe):
        lowest, highest, tau = schedule.k_min, schedule.k_max, schedule.tau
    else:
        return _whole_epochs(recipe, prices, within, rule, left)
    epochs = _most_epochs(
        rule.most_epochs, lambda n: prices.total(rising(lowest, highest, n)) <= left
    )
    if epochs == 0:
        raise too_short(within, prices, lowest, rule)
    steps = fit_steps(lowest, highest, epochs, lambda k: prices.total(k) <= left)
    planned = replace(
        stretched(recipe, epochs), schedule=Piecewise(stages=stages_of(steps), tau=tau)
    )
    expected = None
    if rule.expected is not None and band is not None:
        found = rule.expected.accuracy(recipe, sum(map(prices.training, steps)) / prices.update)
        expected = (rule.expected.attack, *found) if found else None
    return TimePlan(
        _recorded(planned, within), within, prices, tuple(steps), (lowest, highest), expected
    )


def check_plannable(recipe: Recipe) -> None:
    """Refuse a schedule that chooses K by itself, and one that changes the size of the images: the
    price of an epoch would change with it."""
    if closed_loop(recipe.schedule) is not None:
        raise InputError(
            "--within chooses K before training, and this schedule chooses it during training; "
            "set schedule.name to linear or constant, or drop --within"
        )
    if any(u.size for u in planned_controls(recipe.schedule, recipe.train.epochs) or []):
        raise InputError(
            "--within measures the price of images of full size, and schedule.sizes changes it; "
            "set schedule.sizes=[], or drop --within"
        )


def _whole_epochs(
    recipe: Recipe, prices: Prices, within: float, rule: TimeRule, left: float
) -> TimePlan:
    """As many epochs of the recipe's own schedule as fit."""

    def steps_of(epochs: int) -> list[int]:
        schedule: Any = stretched(recipe, epochs).schedule
        return [Control(*schedule(epoch, epochs)[:2]).steps for epoch in range(epochs)]

    epochs = _most_epochs(rule.most_epochs, lambda n: prices.total(steps_of(n)) <= left)
    if epochs == 0:
        raise too_short(within, prices, steps_of(1)[0], rule)
    planned = _recorded(stretched(recipe, epochs), within)
    return TimePlan(planned, within, prices, tuple(steps_of(epochs)), None)


def _most_epochs(most: int, fits: Any) -> int:
    """The largest number up to `most` that fits, if longer runs cost more; 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def rising(lowest: int, highest: int, epochs: int, pace: float = 1.0, done: int = 0) -> list[int]:
    """K of the epochs from `done` on: linear from `lowest` to `highest`, which a `pace` of 2
    reaches at half-time."""
    return [
        min(math.floor(lowest + pace * (highest - lowest) * t / epochs + 0.5), highest)
        for t in range(done, epochs)
    ]


def fit_steps(
    lowest: int, highest: int, epochs: int, fits: Any, done: int = 0, least: int = 0
) -> list[int]:
    """The rising K of the epochs from `done` on that fills the time: the fastest pace that `fits`,
    then single epochs, the last first. No K is below `least`: the K that training has reached."""

    def at(pace: float) -> list[int]:
        return [max(k, least) for k in rising(lowest, highest, epochs, pace, done)]

    slow, quick = 0.0, float(epochs)  # at which all epochs but the first have the highest K
    for _ in range(60):
        pace = (slow + quick) / 2
        slow, quick = (pace, quick) if fits(at(pace)) else (slow, pace)
    steps = at(slow)
    for t in reversed(range(len(steps))):
        while steps[t] < min([highest, *steps[t + 1 :]]) and fits(
            [*steps[:t], steps[t] + 1, *steps[t + 1 :]]
        ):
            steps[t] += 1
    return steps


def stages_of(steps: Sequence[int]) -> list[tuple[int, int]]:
    """(First epoch, K) pairs."""
    return [(t, k) for t, k in enumerate(steps) if t == 0 or k != steps[t - 1]]


def depends_on_steps(recipe: Recipe) -> bool:
    """Whether more attack steps cost more."""
    if type(recipe.method.base) not in METHODS.values():
        return False  # a user-defined method cannot be counted without images
    few, many = (planned_evals(recipe.method, Control(k, 0.0)).evals for k in (1, 3))
    return many > few


def may_stop_early(recipe: Recipe) -> bool:
    """Whether the data decide how many steps a sample takes."""
    if type(recipe.method.base) not in METHODS.values():
        return False
    u = largest_control(recipe.schedule, recipe.train.epochs)
    return not planned_evals(recipe.method, u).exact


def too_short(within: float, prices: Prices, steps: int, rule: TimeRule) -> InputError:
    least = math.ceil((prices.spent + prices.total([steps])) / rule.aim)
    return InputError(
        f"--within {in_time(within)} is too short: one epoch with K = {steps} ends after about "
        f"{in_time(least)}; give at least that, or fewer images (data.limit)"
    )


def stretched(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with so many epochs. What is counted in epochs stays at the same share of the run:
    milestones, stages of the schedule and of the method, and in a shorter run the warm-up."""
    factor = epochs / recipe.train.epochs

    def moved(epoch: float) -> int:
        return round_half_up(epoch * factor)

    optim = recipe.optim.model_copy(
        update={
            "milestones": [float(max(moved(m), 1)) for m in recipe.optim.milestones],
            "warmup": recipe.optim.warmup * min(factor, 1.0),  # a longer run needs no longer one
        }
    )
    train = recipe.train.model_copy(
        update={
            "epochs": epochs,
            "eps_warmup": min(recipe.train.eps_warmup * factor, epochs - 1),
        }
    )
    schedule = recipe.schedule
    if isinstance(schedule, Piecewise):  # stages that meet become one
        stages = tuple(sorted({moved(first): k for first, k in schedule.stages}.items()))
        schedule = replace(schedule, stages=stages)
    method = recipe.method.stretched(factor)
    return replace(recipe, optim=optim, train=train, schedule=schedule, method=method)


def _recorded(recipe: Recipe, within: float) -> Recipe:
    return replace(recipe, train=recipe.train.model_copy(update={"within": within}))
