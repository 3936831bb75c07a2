"""A training run planned for a given time: measure, then plan."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from amata.errors import InputError
from amata.quantity import duration, in_time
from amata.recipes import Recipe
from amata.recipes.overrides import Pair
from amata.schedules import Control, planned_controls, reaching
from amata.training.batches import held_out_batches
from amata.training.deadline import Deadline
from amata.training.prices import Measured, measure
from amata.training.time_plan import (
    TimePlan,
    check_plannable,
    choose_band,
    plan_within,
    takes_steps,
)
from amata.training.time_rule import TimeRule, time_rule
from amata.training.trainer import Trainer
from amata.training.wall import WallClock

TIMED = 4
"""No larger K of the rule is timed: each attack step costs the same."""

SHOWN = 20
"""K of at most so many epochs are printed."""


class Within(NamedTuple):
    """The time of a run, and what of it is the user's own."""

    seconds: float
    keep_schedule: bool = False
    """Whether the schedule stays, instead of one by the rule."""
    keep: frozenset[str] = frozenset()
    """What is not stretched either: method, schedule, optim."""


def read_within(
    value: Any, overrides: Sequence[Pair] = (), epochs: int | None = None
) -> Within | None:
    """The time that a user gave, if any, beside keys of the recipe. A schedule among them stays as
    it is."""
    keys = {key for key, _ in overrides}
    if "train.within" in keys:
        raise InputError("train.within is a record; pass --within (in Python, within=)")
    if value is None:
        return None
    if epochs is not None or "train.epochs" in keys:
        raise InputError(
            "within chooses the epochs; drop --epochs (epochs=, train.epochs) or --within (within=)"
        )
    own = any(key.startswith("schedule.") and key != "schedule.sizes" for key in keys)
    return Within(duration(value, "within"), own)


class Planned(NamedTuple):
    trainer: Trainer
    plan: TimePlan
    measured: Measured
    deadline: Deadline


def plan_run(
    trainer: Trainer,
    valid: Any,
    within: Within,
    wall: WallClock,
    *,
    attack_images: Any = None,
) -> Planned:
    """Measure the prices of this training, and plan it. The trainer then follows the plan."""
    rule, recipe = time_rule(), trainer.recipe
    check_plannable(recipe)
    trainer.hold_out(held_out_batches(valid, recipe, trainer.device))
    controls = timed_controls(recipe, rule, keep_schedule=within.keep_schedule)
    trainer.net.note(f"timing some batches, to plan for {in_time(within.seconds)}")
    measured = measure(trainer, valid, controls, within.seconds, attack_images=attack_images)
    prices = replace(measured.prices, spent=wall.elapsed())
    plan = plan_within(
        recipe,
        prices,
        within.seconds,
        rule,
        keep_schedule=within.keep_schedule,
        keep=within.keep,
    )
    trainer.follow(plan.recipe)
    return Planned(trainer, plan, measured, Deadline(plan, rule, wall))


def timed_controls(recipe: Recipe, rule: TimeRule, *, keep_schedule: bool) -> list[Control]:
    """The controls with the fewest and the most steps that the plan may choose."""
    band = None if keep_schedule else choose_band(recipe, 0.0, rule)
    if band is None:
        own = planned_controls(recipe.schedule, recipe.train.epochs)
        assert own is not None
        parts = [part for u in own for _, part in u.parts()]
    else:
        steps = [band.k_min, band.k_max]
        if rule.band(recipe, 0.0) is not None:
            steps = [min(k, TIMED) for each in rule.bands for k in (each.k_min, each.k_max)]
        most = band.step_size_max
        parts = [reaching(k, band.tau, step_size_max=most).for_batch(0) for k in steps]
    low, high = (choose(parts, key=lambda u: u.steps) for choose in (min, max))
    return [low] if low.steps == high.steps else [low, high]


def describe(plan: TimePlan, note: Callable[[str], None]) -> None:
    """A plan in a line or two."""
    low, high = plan.interval
    note(
        f"{_epochs(plan)}: the trained model is expected after {plan.seconds:.0f} s "
        f"({low:.0f} to {high:.0f}) of {in_time(plan.within)}"
    )
    if plan.better:
        note(_better(plan))


def _better(plan: TimePlan) -> str:
    return (
        f"in this time the recipe {plan.better} was more robust than {plan.recipe.name}, and less "
        "accurate on clean images (one run each)"
    )


def _epochs(plan: TimePlan) -> str:
    first, last = min(plan.steps), max(plan.steps)
    n = len(plan.steps)
    epochs = f"{n} epoch{'s' * (n > 1)}"
    if not takes_steps(plan.recipe):
        return epochs
    return f"{epochs}, K {first:.3g}" + (f" to {last:.3g}" if last > first else "")


def in_lines(plan: TimePlan, evaluation: float | None) -> list[str]:
    """A plan for a reader."""
    low, high = plan.interval
    prices = plan.prices
    every = math.ceil(len(plan.steps) / SHOWN)
    steps = ", ".join(f"{k:.3g}" for k in plan.steps[::every])
    which = "each epoch" if every == 1 else f"epochs 1, {1 + every}, {1 + 2 * every}, ..."
    varied = len(set(plan.steps)) > 1 and takes_steps(plan.recipe)
    timed = f"an epoch takes {prices.update:.2f} s"
    if prices.step:  # two values of K were timed
        timed = f"an epoch of updates takes {prices.update:.2f} s"
        timed += f", and {prices.step:.2f} s more per attack step"
    lines = [
        _epochs(plan) + (f" (of {which}: {steps})" if varied else ""),
        f"start, data and compiling {prices.spent:.1f} s, training {plan.training:.1f} s, "
        f"validation and saving {plan.validation:.1f} s: in all {plan.seconds:.1f} s "
        f"({low:.1f} to {high:.1f}) of {in_time(plan.within)}",
        timed,
    ]
    if plan.seconds < 0.95 * plan.within:
        lines.append(
            "the rest of the time is not used: K is as high as the rule lets it be, and more "
            "epochs do not fit, or would overfit"
        )
    if evaluation is not None:
        lines.append(f"the final evaluation comes after that: about {evaluation:.0f} s")
    else:
        lines.append("the final evaluation comes after that; its time is not known")
    if plan.accuracy is None:
        lines.append("accuracy: not known; no stored study has this recipe and time")
    else:
        attack, middle, low, high = plan.accuracy
        lines.append(f"expected {attack} accuracy: {middle:.1%} ({low:.1%} to {high:.1%})")
    if plan.better:
        lines.append(_better(plan))
    return lines


def as_record(plan: TimePlan) -> dict[str, Any]:
    """A plan for a program."""
    named = ("attack", "accuracy", "low", "high")
    return {
        "within": plan.within,
        "epochs": len(plan.steps),
        "steps": list(plan.steps),
        "schedule": plan.recipe.tables["schedule"],
        "seconds": {
            "start": plan.prices.spent,
            "training": plan.training,
            "validation": plan.validation,
            "total": plan.seconds,
            "low": plan.interval[0],
            "high": plan.interval[1],
        },
        "prices": asdict(plan.prices),
        "accuracy": dict(zip(named, plan.accuracy, strict=True)) if plan.accuracy else None,
        "better": plan.better,
    }
