"""Trainings that go wrong, seen on held-out images, and the way back from there.

A single-step method's robustness can vanish within an epoch while its own loss goes on falling:
catastrophic overfitting. And any training can fall back to guessing, when one update too large
leaves a network that gives every image the same logits.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amata.attacks.checks import check_images, check_logits, forward
from amata.attacks.preserve import untouched
from amata.engine import no_cudnn_benchmark
from amata.errors import AmataError, InputError
from amata.training.batches import Batches
from amata.training.trainer import Snapshot, Trainer

ATTACK = "pgd-10"
IMAGES = 256
DROP = 0.2
"""A fall of the probe's accuracy by this much from one epoch to the next is a collapse (the
threshold of Wong et al. 2020)."""
FEW = 30
"""Images that are too few to tell a guess from bad luck."""
TRIES = 5
"""Remedies of each kind, after which failure ends the run."""


@dataclass(frozen=True)
class Failure(ABC):
    """An epoch that went wrong, with the accuracy before and after it."""

    epoch: int
    before: float
    after: float

    event: ClassVar[str]
    advice: ClassVar[str]
    key: ClassVar[str]
    """What of the position its remedy changes."""
    last: ClassVar[float]
    """The value of that after which no remedy is left."""

    @abstractmethod
    def remedied(self, value: Any) -> Any:
        """That value, changed once more."""


class Collapse(Failure):
    """The accuracy under the probe fell too far. One more inner step helps."""

    event = "collapse"
    advice = "anneal with more steps"
    key, last = "extra_steps", TRIES

    def remedied(self, value: int) -> int:
        return value + 1

    def __str__(self) -> str:
        fell = f"{ATTACK} on held-out images fell from {self.before:.1%} to {self.after:.1%}"
        return f"catastrophic overfitting in epoch {self.epoch + 1}: {fell}"


class ChanceCollapse(Failure):
    """The network only guesses. A lower learning rate helps."""

    event = "fall"
    advice = "lower optim.lr"
    key, last = "lr_scale", 0.5**TRIES

    def remedied(self, value: float) -> float:
        return value / 2

    def __str__(self) -> str:
        fell = f"from {self.before:.1%} to {self.after:.1%} of held-out images"
        return f"training fell back to guessing in epoch {self.epoch + 1}: {fell}"


def collapsed(before: float, after: float) -> bool:
    return after < before - DROP


class GuardStats(NamedTuple):
    """What the weights make of some clean held-out images."""

    images: int
    accuracy: float
    same: float
    """The share of images that get the commonest answer."""
    loss: float
    informed: float
    """The loss of a guess that knows how common each class is."""
    equal: float
    """The loss of equal logits."""

    def fallen(self, best: float) -> bool:
        """Whether a network that had learnt something now guesses. One whose BatchNorm is off for
        an epoch may also give one answer to most, but is sure of it: its loss is higher. Few images
        say nothing."""
        guesses = self.same > 0.5 and 0.95 * self.informed < self.loss < 1.05 * self.equal
        return self.images >= FEW and guesses and self.accuracy < max(best - DROP, best / 2)


def guard_stats(model: nn.Module, batches: Batches) -> GuardStats:
    """GuardStats at the first images of these, and leave the model as it was."""
    pairs: list[tuple[Tensor, Tensor]] = []
    with untouched(model), torch.no_grad(), no_cudnn_benchmark():
        for batch in batches.epoch():
            if sum(len(y) for _, y in pairs) >= IMAGES:  # a stream may go on
                break
            check_images(batch.x, batch.y)
            z = forward(model, batch.x).float()
            check_logits(z, batch.y)
            pairs.append((z.cpu(), batch.y.cpu()))
    if not pairs:
        raise InputError("there is no held-out image to look at; give none or some")
    z, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    answers, labels = (torch.bincount(t, minlength=z.shape[1]) / len(y) for t in (z.argmax(1), y))
    return GuardStats(
        images=len(y),
        accuracy=float((z.argmax(1) == y).float().mean()),
        same=float(answers.max()),
        loss=float(cross_entropy(z, y)),
        informed=-float(torch.special.xlogy(labels, labels).sum()),
        equal=math.log(z.shape[1]),
    )


class Guard:
    """Looks at the trained weights after every epoch, and knows the way back."""

    def __init__(
        self, trainer: Trainer, robust_accuracy: Callable[[Batches], float], images: Batches
    ) -> None:
        """`images` are some held-out ones, and `probe` gives the accuracy of the weights under
        ATTACK on such."""
        self.trainer, self.robust_accuracy, self.images = trainer, robust_accuracy, images
        self.good: Snapshot | None = None
        """The state at the end of the last good epoch."""

    @property
    def armed(self) -> bool:
        """Whether the schedule asks for a single gradient step now, of a method that may collapse
        by it."""
        may_collapse = getattr(self.trainer.recipe.method, "may_collapse", False)
        return self.trainer.scheduled().steps == 1 and may_collapse

    def remember(self) -> None:
        """Keep the state after a good epoch."""
        self.good = None  # not both at once
        tensors, record = self.trainer.snapshot()
        self.good = {k: v.detach().clone() for k, v in tensors.items()}, record

    def check(self) -> Failure | None:
        """After an epoch: what has gone wrong since the last good one."""
        state = self.trainer.state
        # all processes must agree
        seen = self.trainer.ranks.broadcast(guard_stats(self.trainer.model, self.images))
        if seen.fallen(state.guard_clean):  # a guess fails the probe too, but needs another remedy
            return ChanceCollapse(state.epoch, state.guard_clean, seen.accuracy)
        robust = self.robust_accuracy(self.images) if self.armed else None
        if (
            state.guard_robust is not None
            and robust is not None
            and collapsed(state.guard_robust, robust)
        ):
            return Collapse(state.epoch, state.guard_robust, robust)
        state.guard_robust, state.guard_clean = robust, max(state.guard_clean, seen.accuracy)
        return None

    def event(self, failure: Failure) -> dict[str, Any]:
        """What is to be done about it, as the recipe says, in a row of metrics.jsonl."""
        value = getattr(self.trainer.state, failure.key)
        action = (
            "stop"
            if self.good is None or value == failure.last
            else self.trainer.recipe.train.guard
        )
        change = {failure.key: failure.remedied(value) if action == "rollback" else value}
        return {"event": failure.event, "action": action, **change, **asdict(failure)}

    def go_back(self, failure: Failure, event: dict[str, Any]) -> str:
        """To the last good epoch, to go on from there otherwise, or to stop there. Says what is
        otherwise."""
        if self.good is not None:
            self.trainer.rewind(*self.good)
        if event["action"] == "stop":
            raise AmataError(
                f"{failure}; stopped, with the last good checkpoint kept: {failure.advice}, or "
                "set train.guard"
            )
        setattr(self.trainer.state, failure.key, event[failure.key])
        state = self.trainer.state
        return (
            f"{self.trainer.control().steps} inner steps"
            if isinstance(failure, Collapse)
            else f"{state.lr_scale:g} of the learning rate"
        )
