"""Checks of what can be divided among processes, or into parts of a batch."""

from amata.distributed import Ranks
from amata.errors import InputError
from amata.recipes import Recipe


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
