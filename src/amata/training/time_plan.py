"""Epochs and attack steps that fit into a given time: a pure function of prices."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from amata.errors import InputError
from amata.methods import ERM, METHODS, planned_evals
from amata.quantity import in_time
from amata.recipes import Recipe
from amata.recipes.length import stretched
from amata.schedules import (
    Control,
    Linear,
    Piecewise,
    closed_loop,
    largest_control,
    only_k_changes,
    planned_controls,
)
from amata.training.time_rule import Band, TimeRule


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
    end: float = 0.0
    """After the last epoch, which is always validated: what `epoch` leaves out of that."""
    spread: float = 0.0
    """How far the prices may be off, as a share."""
    single: float = 0.0
    """More once an epoch, if it has single steps: the guard attacks after it."""

    def training(self, steps: float) -> float:
        """An epoch under K attack steps, without validation."""
        return self.update + self.step * steps

    def once(self, steps: Sequence[float]) -> float:
        """What comes once in each of the epochs with these K."""
        return self.epoch * len(steps) + self.single * sum(0 < k < 2 for k in steps)

    def total(self, steps: Sequence[float]) -> float:
        """Epochs with these K, with what comes once an epoch."""
        return sum(map(self.training, steps)) + self.once(steps)

    def mean(self, low: float, high: float) -> float:
        """An epoch of a run whose K rises linearly."""
        if low == high:
            return self.total([low])
        singles = min(max(2 - low, 0.0) / (high - low), 1.0)
        return (self.training(low) + self.training(high)) / 2 + self.epoch + singles * self.single


@dataclass(frozen=True)
class TimePlan:
    """What a run does within a given time, and what that is expected to take."""

    recipe: Recipe
    """With the epochs, the schedule and the learning rate's milestones that fit."""
    within: float
    prices: Prices
    steps: tuple[float, ...]
    """K of every epoch."""
    range: tuple[int, int] | None
    """Between which K may be chosen; None if only the epochs are."""
    accuracy: tuple[str, float, float, float] | None = None
    """An attack, the expected accuracy under it and its 95% interval; None if nothing is known."""
    better: str | None = None
    """Another recipe, which was more robust in such a time."""

    @property
    def training(self) -> float:
        return sum(map(self.prices.training, self.steps))

    @property
    def validation(self) -> float:
        return self.prices.once(self.steps) + self.prices.end

    @property
    def seconds(self) -> float:
        """From the start of the command to the trained model on the disk."""
        return self.prices.spent + self.training + self.validation

    @property
    def interval(self) -> tuple[float, float]:
        """The time by the cheapest and the dearest prices that were measured; at least what has
        passed."""
        off = self.prices.spread * (self.training + self.validation)
        return max(self.seconds - off, self.prices.spent), self.seconds + off


def plan_within(
    recipe: Recipe,
    prices: Prices,
    within: float,
    rule: TimeRule,
    *,
    keep_schedule: bool = False,
    keep: Collection[str] = (),
) -> TimePlan:
    """The longest run that ends within the time, by the rule. With a schedule that is kept, as one
    that the user gave, only the epochs are chosen. `keep` is not stretched to them."""
    check_plannable(recipe)
    left = rule.aim * within - prices.spent - prices.end
    updates = left / prices.update
    band = None if keep_schedule else choose_band(recipe, updates, rule)
    if band is None:
        return _own_schedule(recipe, prices, within, rule, left, keep)
    epochs = min(_affordable_epochs(band, prices, left), band.most_epochs or rule.most_epochs)
    if epochs < 1:
        raise too_short(within, prices, band.k_min, rule)

    def fits(steps: list[float]) -> bool:
        return prices.total(steps) <= left

    steps = rising(band.k_min, band.k_max, epochs, fits)
    while not fits(steps) and epochs > 1:  # more single steps than their mean share
        epochs -= 1
        steps = rising(band.k_min, band.k_max, epochs, fits)
    schedule = Piecewise(stages=stages_of(steps), tau=band.tau, step_size_max=band.step_size_max)
    planned = replace(stretched(recipe, epochs, keep), schedule=schedule)
    expected = None
    if rule.expected is not None:
        found = rule.expected.accuracy(recipe, steps)
        expected = (rule.expected.attack, *found) if found else None
    return TimePlan(
        _recorded(planned, within),
        within,
        prices,
        tuple(steps),
        (band.k_min, band.k_max),
        expected,
        rule.advice(recipe, updates),
    )


def choose_band(recipe: Recipe, updates: float, rule: TimeRule) -> Band | None:
    """Between which K a linear schedule anneals: by the rule, or as the recipe says. None if K
    stays: under another schedule, under one that anneals more than K, and where steps are free."""
    own = recipe.schedule
    controls = planned_controls(own, max(recipe.train.epochs, 2)) or []
    if not isinstance(own, Linear) or not only_k_changes(controls):
        return None
    if (band := rule.band(recipe, updates)) is not None:
        limits = [band.step_size_max, own.step_size_max]
        return band._replace(step_size_max=min((v for v in limits if v is not None), default=None))
    if not depends_on_steps(recipe):
        return None
    least = min(rule.least_epochs, recipe.train.epochs)
    return Band(0.0, own.k_min, own.k_max, own.tau, least, own.step_size_max)


UNUSED = 0.03
"""Of the time, which may be left over: less is not worth another epoch, for which K would stay
below k_max."""


def _affordable_epochs(band: Band, prices: Prices, left: float) -> int:
    """As many as can rise from k_min to k_max. More where these are fewer than the band's least
    number, or where k_max in all of them would not fill the time; as many as K = k_min allows."""
    low, high = prices.total([band.k_min]), prices.total([band.k_max])
    mean = min(prices.mean(band.k_min, band.k_max), high)
    most, rising = (math.floor(left / price + 1e-9) for price in (low, mean))
    filling = math.ceil((1 - UNUSED) * left / high)
    return max(rising, min(most, max(band.epochs, filling)))


def check_plannable(recipe: Recipe) -> None:
    """Refuse a schedule that chooses K by itself, and one that changes the size of the images: the
    price of an epoch would change with it."""
    if closed_loop(recipe.schedule) is not None:
        raise InputError(
            "for a time K is planned before training, and this schedule chooses it during "
            "training; take a linear or constant schedule, or give epochs instead of the time"
        )
    if any(u.size for u in planned_controls(recipe.schedule, recipe.train.epochs) or []):
        raise InputError(
            "for a time images of full size are timed, and the schedule's sizes change it; "
            "set schedule.sizes=[] (sizes=()), or give epochs instead of the time"
        )


def _own_schedule(
    recipe: Recipe,
    prices: Prices,
    within: float,
    rule: TimeRule,
    left: float,
    keep: Collection[str],
) -> TimePlan:
    """As many epochs of the recipe's own schedule as fit."""

    def steps_of(epochs: int) -> list[float]:
        own = planned_controls(stretched(recipe, epochs, keep).schedule, epochs) or []
        return [u.steps for u in own]

    epochs, over = 0, rule.most_epochs + 1
    while over - epochs > 1:
        middle = (epochs + over) // 2
        if prices.total(steps_of(middle)) <= left:
            epochs = middle
        else:
            over = middle
    if epochs == 0:
        raise too_short(within, prices, steps_of(1)[0], rule, attacked=takes_steps(recipe))
    planned = _recorded(stretched(recipe, epochs, keep), within)
    return TimePlan(planned, within, prices, tuple(steps_of(epochs)), None)


SLOPES = 16
"""Slopes that are tried before one between them is found by bisection."""


def rising(
    start: float, highest: int, epochs: int, fits: Callable[[list[float]], bool]
) -> list[float]:
    """K of so many epochs that fills the time: it rises linearly from `start` up to `highest`, as
    fast as `fits`. An epoch has the K of its middle."""

    def at(slope: float) -> list[float]:
        return [_rounded(min(start + slope * (t + 0.5), highest)) for t in range(epochs)]

    quick = 2.0 * (highest - start)  # with which every epoch has the highest K
    if fits(at(quick)):
        return at(quick)
    # More steps may cost less in all, if fewer epochs have single steps: so the highest that fit.
    slopes = [quick * i / SLOPES for i in range(SLOPES)]
    slow = next((slope for slope in reversed(slopes) if fits(at(slope))), 0.0)
    quick = slow + quick / SLOPES
    for _ in range(30):
        slope = (slow + quick) / 2
        slow, quick = (slope, quick) if fits(at(slope)) else (slow, slope)
    return at(slow)


def _rounded(steps: float) -> float:
    """K as people read it: three digits, and a whole number as an integer."""
    k = math.floor(1000 * steps + 1e-6) / 1000
    return int(k) if k == int(k) else k


def stages_of(steps: Sequence[float]) -> list[tuple[int, float]]:
    """(First epoch, K) pairs."""
    return [(t, k) for t, k in enumerate(steps) if t == 0 or k != steps[t - 1]]


def takes_steps(recipe: Recipe) -> bool:
    """Whether there is an attack at all."""
    return not isinstance(recipe.method.base, ERM)


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


MARGIN = 1.1
SECONDS = 5.0
"""Times the measured time, and more: the same machine may be slower in the next moment."""


def too_short(
    within: float, prices: Prices, steps: float, rule: TimeRule, *, attacked: bool = True
) -> InputError:
    ends = (prices.spent + prices.total([steps]) + prices.end) / rule.aim
    enough = in_time(math.ceil(MARGIN * ends + SECONDS))
    epoch = f"one epoch with K = {steps:g}" if attacked else "one epoch"
    return InputError(
        f"{in_time(within)} is too short: {epoch} ends after about {in_time(math.ceil(ends))}; "
        f"give {enough} or more, smaller or fewer images (in a recipe data.crop, data.limit), or a "
        "smaller network. Other work on this machine makes it longer; on a busy CPU try again "
        "with OMP_NUM_THREADS=1"
    )


def _recorded(recipe: Recipe, within: float) -> Recipe:
    return replace(recipe, train=recipe.train.model_copy(update={"within": within}))
