"""What a training returns."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from amata.metrics import EpochRow, Event
from amata.recipes import Recipe
from amata.training.wall import WallClock


@dataclass
class Fitted:
    """A finished training: the best model, and its history."""

    model: nn.Module = field(repr=False)
    """The network with the weights that did best on the validation set, in eval mode; the last
    weights if there was none."""
    epochs: list[EpochRow] = field(default_factory=list, repr=False)
    events: list[Event] = field(default_factory=list)
    """Epochs that the collapse guard rejected."""
    best_epoch: int | None = None
    train_seconds: float = 0.0
    grad_evals: int = 0
    """Full-network gradient evaluations, in images."""
    images: int = 0
    """Images trained on: epochs times training images."""

    def summary(
        self, recipe: Recipe, evaluation: dict[str, Any], wall: WallClock | None = None
    ) -> dict[str, Any]:
        """The content of summary.json; with `wall`, what the time was spent on."""
        return {
            "recipe": recipe.name,
            "epochs": recipe.train.epochs,
            "train_seconds": round(self.train_seconds, 3),
            **({"wall_seconds": wall.table()} if wall is not None else {}),
            "grad_evals": self.grad_evals,
            "grad_evals_per_image": self.grad_evals / self.images,
            "best_epoch": self.best_epoch,
            "evaluation": evaluation,
        }
