"""What can be divided, among processes or into parts of a batch, and what cannot."""

from amata.distributed import Ranks
from amata.errors import InputError
from amata.recipes import Recipe


def check_equal_batches(count: int, ranks: Ranks) -> None:
    """Refuse batches of which processes have different numbers: they would wait for each other for
    good."""
    total, squares = ranks.sum([count, count**2])
    if squares * ranks.size != total**2:
        raise InputError(
            f"this process has {count} batches an epoch and others have not; give all the same "
            "number"
        )


def check_divisible(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse what cannot be divided among processes, or into parts of a batch."""
    name = recipe.tables["method"]["name"]
    if recipe.data.batch_size < ranks.size:
        raise InputError(
            f"data.batch_size = {recipe.data.batch_size} cannot be divided among {ranks.size} "
            "processes; raise it"
        )
    if recipe.train.sync_bn and recipe.train.accumulate > 1 and ranks.size > 1:
        raise InputError(
            "train.sync_bn makes BatchNorm see the whole batch and train.accumulate a part of "
            "it; choose one of the two"
        )
    if ranks.size > 1 and getattr(recipe.method, "one_process", False):
        raise InputError(
            f"{name} keeps a store of every image's perturbation, which {ranks.size} processes "
            "do not share; start one"
        )
    whole = (
        getattr(recipe.method, "updates_often", False)
        or getattr(recipe.method, "init", None) == "previous"
    )
    if recipe.train.accumulate > 1 and whole:
        raise InputError(
            f"{name} carries something from pass to pass of a whole batch, which cannot come "
            "in parts; set train.accumulate=1"
        )
    if recipe.train.sync_bn and recipe.train.attack_mode == "train":
        raise InputError(
            "train.sync_bn would let processes wait for each other in every attack step; set "
            "train.attack_mode=eval"
        )
