"""Checks of a recipe as a whole: settings that contradict each other, and what cannot be divided
among processes or into parts of a batch."""

from collections.abc import Sequence

from amata.distributed import Ranks
from amata.errors import InputError
from amata.recipes import Recipe
from amata.schedules import Control


def check_consistent(recipe: Recipe, plan: Sequence[Control] | None) -> None:
    """Refuse settings that would have no effect, and controls with which nothing is trained."""
    method, name = recipe.method, type(recipe.method).__name__
    if method.own_loss and recipe.optim.label_smoothing > 0:
        raise InputError(
            f"{name} trains on a loss of its own, without label smoothing; set "
            "optim.label_smoothing=0"
        )
    for epoch, u in enumerate(plan or []):
        if u.steps < method.min_steps:
            raise InputError(
                f"with {u.steps} steps, as in epoch {epoch + 1}, {name} does not update the "
                "weights; raise K in [schedule]"
            )


def check_equal_batches(count: int, ranks: Ranks) -> None:
    """Refuse processes with different numbers of batches: they would deadlock."""
    total, squares = ranks.sum([count, count**2])
    if squares * ranks.size != total**2:
        raise InputError(
            f"this process has {count} batches per epoch and others have a different number; give "
            "every process the same number"
        )


def check_divisible(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse what cannot be divided among processes, or into parts of a batch."""
    method, name = recipe.method, type(recipe.method).__name__
    if recipe.data.batch_size < ranks.size:
        raise InputError(
            f"data.batch_size = {recipe.data.batch_size} cannot be divided among {ranks.size} "
            "processes; raise it"
        )
    if recipe.train.sync_bn and recipe.train.accumulate > 1 and ranks.size > 1:
        raise InputError(
            "train.sync_bn uses the statistics of the whole batch, train.accumulate those of a "
            "part; choose one of the two"
        )
    if ranks.size > 1 and method.one_process:
        raise InputError(
            f"{name} stores a perturbation per image, which {ranks.size} processes do not share; "
            "start one process"
        )
    if recipe.train.accumulate > 1 and method.whole_batch:
        raise InputError(
            f"{name} carries state from pass to pass of a whole batch, which cannot come in parts; "
            "set train.accumulate=1"
        )
    if recipe.train.sync_bn and recipe.train.attack_mode == "train":
        raise InputError(
            "train.sync_bn would synchronise processes in every attack step; set "
            "train.attack_mode=eval"
        )
