"""A recipe with another number of epochs."""

from collections.abc import Collection
from dataclasses import replace

from amata.quantity import round_half_up, whole
from amata.recipes.recipe import Recipe
from amata.schedules import Exponential, Piecewise


def stretched(recipe: Recipe, epochs: int, keep: Collection[str] = ()) -> Recipe:
    """The recipe with so many epochs. What is counted in epochs stays at the same share of the run:
    the rise of the schedule, stages of schedule and method, and in a shorter run milestones and the
    warm-up. In a longer run milestones keep their distance from the end: more epochs with a low
    learning rate overfit. `keep` names what stays as it is: method, schedule, optim."""
    epochs = whole(epochs, "epochs", 1)
    factor = epochs / recipe.train.epochs
    longer = max(epochs - recipe.train.epochs, 0)

    def moved(epoch: float) -> int:
        return round_half_up(epoch * factor)

    def milestone(epoch: float) -> float:
        return epoch + longer if longer else round(epoch * factor, 3)

    optim = recipe.optim.model_copy(
        update={
            "milestones": [milestone(m) for m in recipe.optim.milestones],
            # A longer run needs no longer one.
            "warmup": round(recipe.optim.warmup * min(factor, 1.0), 3),
        }
    )
    train = recipe.train.model_copy(
        update={
            "epochs": epochs,
            "eps_warmup": min(round(recipe.train.eps_warmup * factor, 3), epochs - 1),
            "within": None,  # which chose other epochs
        }
    )
    schedule = recipe.schedule
    if isinstance(schedule, Piecewise):  # stages that meet become one
        stages = tuple(sorted({moved(first): k for first, k in schedule.stages}.items()))
        schedule = replace(schedule, stages=stages)
    elif isinstance(schedule, Exponential):
        schedule = replace(schedule, eta=schedule.eta / factor)
    return replace(
        recipe,
        train=train,
        optim=recipe.optim if "optim" in keep else optim,
        schedule=recipe.schedule if "schedule" in keep else schedule,
        method=recipe.method if "method" in keep else recipe.method.stretched(factor),
    )
