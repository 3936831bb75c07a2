"""The fast gradient sign method (Goodfellow et al. 2015, arXiv 1412.6572).

x_adv = P( x + eps * direction(grad_x loss(x)) ), where the direction is the sign of the gradient in
L-inf and the normalised gradient in L2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from amata.attacks.base import Attack
from amata.attacks.checks import check_images, check_model, check_module
from amata.attacks.preserve import input_grad, untouched
from amata.losses import Loss, ce
from amata.threat import Ball, check_ball


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    loss: Loss = ce,
    targets: Tensor | None = None,
) -> Tensor:
    """One step of length eps from the image itself. With `targets` the step descends the loss
    towards those labels."""
    check_module(model)
    check_ball(ball)
    goal, climb = goal_of(y, targets, loss)
    check_images(x, goal)
    region = ball.around(x)
    with untouched(model):
        check_model(model, x, goal)
        g = input_grad(model, x, goal, climb)
        return region.project(region.ascend(x, g, ball.eps)).detach()


def goal_of(y: Tensor, targets: Tensor | None, loss: Loss) -> tuple[Tensor, Loss]:
    """The labels and the loss to ascend: the loss itself at y, or its negative at the targets."""
    if targets is None:
        return y, loss
    return targets, lambda z, t: -loss(z, t)


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    pattern: ClassVar[str] = "fgsm"
    examples: ClassVar[tuple[str, ...]] = ("fgsm",)

    def params(self, ball: Ball) -> dict[str, Any]:
        return {
            "norm": ball.norm,
            "eps": ball.eps,
            "steps": 1,
            "step_size": ball.eps,
            "random_start": False,
            "loss": "ce",
        }

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return fgsm(model, x, y, ball=ball)
