"""The work that a recipe plans, for the estimate whether compiling pays."""

from amata.engine import Plan
from amata.recipes import Recipe
from amata.schedules import planned_controls


def planned_work(
    recipe: Recipe, shape: tuple[int, ...] | None, images: int | None, processes: int = 1
) -> Plan | None:
    """The work of one process on so many images of this shape; None if it is not known before."""
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
    )
