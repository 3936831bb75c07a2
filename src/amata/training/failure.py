"""How an epoch of training may fail, and the remedy of each."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

ATTACK = "pgd-10"
HELD_OUT, TRAINING = "held-out images", "training images"
TRIES = 5
"""Remedies of each kind, after which a failure ends the run."""


@dataclass(frozen=True)
class Failure(ABC):
    """A failed epoch, with the accuracy before and after it."""

    epoch: int
    before: float
    after: float
    seen_on: str = HELD_OUT

    event: ClassVar[str]
    advice: ClassVar[str]
    key: ClassVar[str]
    """The field of the training state that its remedy changes."""
    last: ClassVar[float]
    """The value of that field at which no remedy is left."""

    @abstractmethod
    def remedied(self, value: Any) -> Any:
        """The field's next value."""


class CatastrophicOverfitting(Failure):
    """The accuracy under ATTACK dropped too far. The remedy is one more inner step."""

    event = "catastrophic-overfitting"
    advice = "anneal with more steps"
    key, last = "extra_steps", TRIES

    def remedied(self, value: int) -> int:
        return value + 1

    def __str__(self) -> str:
        return (
            f"catastrophic overfitting in epoch {self.epoch + 1}: {ATTACK} accuracy on "
            f"{self.seen_on} dropped from {self.before:.1%} to {self.after:.1%}"
        )


class ChanceCollapse(Failure):
    """The network collapsed to chance accuracy. The remedy is half the learning rate."""

    event = "chance-collapse"
    advice = "lower optim.lr"
    key, last = "lr_scale", 0.5**TRIES

    def remedied(self, value: float) -> float:
        return value / 2

    def __str__(self) -> str:
        return (
            f"training collapsed to chance accuracy in epoch {self.epoch + 1}: "
            f"from {self.before:.1%} to {self.after:.1%} of {self.seen_on}"
        )
