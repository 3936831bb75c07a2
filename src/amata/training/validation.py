"""The accuracy of a model in training on held-out images."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from amata.distributed import Ranks
from amata.evaluation import Result, Shard, evaluate
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.training.batches import Batches
from amata.training.trainer import Trainer


def part_of(ranks: Ranks) -> Shard:
    """What this process evaluates."""
    return Shard(ranks.rank, ranks.size, ranks.sum)


def validate(
    trainer: Trainer,
    images: Batches,
    attacks: Sequence[str],
    limit: int | None = None,
    model: nn.Module | None = None,
    progress: Callable[..., None] | bool = False,
) -> dict[str, Result]:
    """The accuracy of the trainer's result, or of `model`, on held-out images."""
    recipe, ranks = trainer.recipe, trainer.ranks
    sizes = [size for size in (limit, images.count) if size is not None]
    return evaluate(
        model or trainer.result,
        images.epoch(0, ranks.rank, ranks.size),
        ball=recipe.ball,
        attacks=list(dict.fromkeys(attacks)),
        step_size=recipe.eval.step_size,
        cw_c=recipe.eval.cw_c,
        limit=min(sizes, default=None),
        seed=recipe.train.seed,
        progress=progress,
        part=part_of(ranks),
        batch_size=recipe.eval.batch_size,
        engine=_validation_engine(recipe),
    )


def _validation_engine(recipe: Recipe) -> Literal["auto", "plain"]:
    """A run by recipe compiles a copy for its final evaluation, and validation shares it. For
    validation alone there are too few images."""
    alone = isinstance(recipe.data, PythonData) or not recipe.eval.attacks
    return "plain" if alone or recipe.train.engine == "plain" else "auto"
