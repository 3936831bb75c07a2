"""Warnings about models that have learnt nothing and about masked gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from amata.attacks import Attack
from amata.attacks.preserve import input_grad, untouched
from amata.evaluation.result import Result
from amata.losses import ce, correct
from amata.threat import Ball

LEARNT_NOTHING = (
    "every image is predicted as the same class: the model has learnt nothing, so its robust "
    "accuracy means nothing"
)


@dataclass(frozen=True)
class ModelStats:
    """Signs of an untrained model or of masked gradients, as sums that processes can add."""

    images: int = 0
    correct: int = 0
    non_finite: int = 0
    class_sum: int = 0
    class_square_sum: int = 0
    """Sums over the predicted class indices and over their squares."""
    probed: int = 0
    zero_gradient: int = 0
    """The correctly classified images of the first batch, and those of them with an input gradient
    of exactly zero."""

    def plus(self, images: int, correct: int, bad: int, total: int, squares: int) -> "ModelStats":
        """With the counts of another batch."""
        return replace(
            self,
            images=self.images + images,
            correct=self.correct + correct,
            non_finite=self.non_finite + bad,
            class_sum=self.class_sum + total,
            class_square_sum=self.class_square_sum + squares,
        )

    def with_gradients(self, model: nn.Module, x: Tensor, y: Tensor, z: Tensor) -> "ModelStats":
        # Take the whole batch: a new batch size for the correct images would be slow on a GPU.
        with untouched(model):
            g = input_grad(model, x, y, ce)
        right = correct(z, y)
        zero = right & (g.flatten(1).abs().amax(1) == 0)
        probed, without = torch.stack([right.sum(), zero.sum()]).tolist()
        return replace(self, probed=probed, zero_gradient=without)

    @property
    def predicts_one_class(self) -> bool:
        """Whether all images get the same class: of at least 50 images over a tenth wrongly, or of
        at least 20 over half.

        All predictions are equal when the mean of their squares is the square of their mean.
        """
        constant = self.images * self.class_square_sum == self.class_sum**2
        most = 0.9 if self.images >= 50 else 0.5
        known = self.images >= 20 and self.non_finite == 0
        return known and constant and self.correct <= most * self.images


def _guessing(result: Result) -> str:
    """A warning if this clean accuracy may be that of one answer for all images: over the classes
    it has one over their number on average."""
    shares = [(right / images, images) for right, images in result.per_class if images]
    if result.n < 20 or len(shares) < 2:
        return ""
    mean, chance = sum(p for p, _ in shares) / len(shares), 1 / len(shares)
    error = math.sqrt(sum(p * (1 - p) / n for p, n in shares)) / len(shares)
    if mean - 2 * error > chance:
        return ""
    return (
        f"not clearly better than guessing: the classes have {mean:.1%} on average, and by chance "
        f"{chance:.1%}"
    )


def add_warnings(
    attacks: Sequence[Attack], results: dict[str, Result], ball: Ball, stats: ModelStats
) -> None:
    """Add the warnings to the results of these attacks."""
    for strong in attacks:
        result = results[strong.name]
        if stats.predicts_one_class:
            result.warnings.append(LEARNT_NOTHING)
        elif not strong.perturbs and (guess := _guessing(result)):
            result.warnings.append(guess)
        elif stats.zero_gradient > 0.05 * stats.probed and strong.perturbs:
            result.warnings.append(
                f"{stats.zero_gradient} of {stats.probed} images have an input gradient of exactly "
                "zero: gradients look masked, so this accuracy is only an upper bound"
            )
        for weak in attacks:
            gap = result.accuracy - results[weak.name].accuracy
            if strong.stronger_than(weak, ball) and gap > max(0.01, 2 / result.n):
                result.warnings.append(
                    f"accuracy under {strong.name} is {gap:.1%} higher than under the weaker "
                    f"{weak.name}: gradients look masked, so trust neither number"
                )
