"""The work that a recipe plans, for the estimate whether compiling pays and for the time left."""

from collections.abc import Sequence

from amata.engine import Plan
from amata.methods import METHODS, planned_evals
from amata.recipes import Recipe
from amata.schedules import Control, planned_controls
from amata.training.sizes import pixel_shares


def epoch_costs(recipe: Recipe, plan: Sequence[Control[float]]) -> list[float]:
    """Gradient evaluations per image of every epoch: counted, and for a user-defined method, which
    may need real images, K + 1."""
    if type(recipe.method.base) not in METHODS.values():
        return [u.steps + 1 for u in plan]
    return [planned_evals(recipe.method, u, t).evals for t, u in enumerate(plan)]


def epoch_work(recipe: Recipe, plan: Sequence[Control[float]], side: int | None) -> list[float]:
    """`epoch_costs` as a measure of time, for images of this side: weighed by the pixels that the
    schedule leaves of them."""
    costs = zip(epoch_costs(recipe, plan), pixel_shares(plan, side), strict=True)
    return [evals * pixels for evals, pixels in costs]


def planned_work(
    recipe: Recipe,
    shape: tuple[int, ...] | None,
    images: int | None,
    processes: int = 1,
    within: float | None = None,
) -> Plan | None:
    """The work of one process on so many images of this shape, or that a time is filled with; None
    if it is not known before."""
    controls = planned_controls(recipe.schedule, recipe.train.epochs)
    if shape is None or images is None or controls is None:
        return None
    parts = processes * recipe.train.accumulate
    return Plan(
        type(recipe.method.base).__name__,
        shape,
        images // processes,
        max(recipe.data.batch_size // parts, 1),
        [u.steps for u in controls],
        pixel_shares(controls, shape[-1]) if any(u.size for u in controls) else (),
        within,
    )
