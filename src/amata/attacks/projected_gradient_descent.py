"""Projected gradient descent (Madry et al. 2018, arXiv 1706.06083).

x^0 = a random point of the ball
x^k = P( x^(k-1) + alpha * direction(grad_x loss(x^(k-1))) ),  k = 1 .. K

The direction is the sign of the gradient in L-inf and the normalised gradient in L2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from amata import seeds
from amata.attacks.base import INT, Attack
from amata.attacks.checks import check_images, check_model, check_module, check_start
from amata.attacks.fast_gradient_sign import FGSM, goal_of
from amata.attacks.preserve import input_grad, untouched
from amata.attacks.randomness import generator_on
from amata.attacks.survivors import judge_of, padded
from amata.errors import InputError
from amata.losses import Loss, ce, correct
from amata.quantity import Count, Positive, in_pixels, positive, whole
from amata.threat import Ball, Linf, check_ball


def default_step_size(ball: Ball, steps: int) -> float:
    """2.5 eps / K, Madry's rule: K steps can cross the ball and return. For one step, eps."""
    return ball.eps if steps == 1 else 2.5 * ball.eps / max(steps, 1)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    steps: int = 20,
    step_size: float | None = None,
    loss: Loss = ce,
    random_start: bool = True,
    start: Tensor | None = None,
    restarts: int = 1,
    targets: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """K projected ascent steps on the loss. With several restarts each sample keeps its worst case.

    `step_size` is 2.5 eps / K by default. `start` replaces the first starting point; further
    restarts are random. With `targets` the attack descends the loss towards those labels.

    Random starts are drawn from `generator`, one restart after the other. Without one they are
    fresh at each call, and `torch.manual_seed` makes them repeatable.
    """
    check_module(model)
    check_ball(ball)
    goal, climb = goal_of(y, targets, loss)
    check_images(x, goal)
    if start is not None:
        check_start(start, x)
    if isinstance(steps, float) and 0 < steps % 1 < 1:
        raise InputError(
            f"steps = {steps:g} must be a whole number; with u of a schedule in fractions, take "
            "u.for_batch(i).steps in batch i"
        )
    steps, restarts = whole(steps, "steps", 0), whole(restarts, "restarts", 1)
    if step_size is None:
        alpha = default_step_size(ball, steps)
    else:  # in L2, steps may be long
        alpha = (in_pixels if isinstance(ball, Linf) else positive)(step_size, "step_size")
    region = ball.around(x)
    worst: _Candidates | None = None
    with untouched(model):
        check_model(model, x, goal)
        for restart in range(restarts):
            if start is not None and restart == 0:
                x_adv = region.project(start)
            elif random_start or restart > 0:
                x_adv = region.start(generator_on(x.device, generator))
            else:
                x_adv = x
            for _ in range(steps):
                g = input_grad(model, x_adv, goal, climb)
                x_adv = region.project(region.ascend(x_adv, g, alpha))
            if restarts == 1:
                return x_adv.detach()
            with torch.no_grad():
                z = model(x_adv)
                fooled = ~correct(z, y) if targets is None else correct(z, targets)
                # A loss that is not a number must not win against one that is.
                loss_now = torch.nan_to_num(climb(z, goal), -torch.inf, torch.inf, -torch.inf)
                candidates = _Candidates(x_adv.detach(), fooled, loss_now)
            worst = candidates if worst is None else worst.or_worse(candidates)
    assert worst is not None
    return worst.x


class _Candidates(NamedTuple):
    """One adversarial image per sample, whether it fools the model, and its loss."""

    x: Tensor
    fooled: Tensor
    loss: Tensor

    def or_worse(self, other: "_Candidates") -> "_Candidates":
        """Per sample the worse of the two. Fooling the model counts first, then the loss."""
        take = (other.fooled & ~self.fooled) | (
            (other.fooled == self.fooled) & (other.loss > self.loss)
        )
        x = torch.where(take.view(-1, *[1] * (self.x.dim() - 1)), other.x, self.x)
        return _Candidates(
            x,
            torch.where(take, other.fooled, self.fooled),
            torch.where(take, other.loss, self.loss),
        )


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    pattern: ClassVar[str] = rf"pgd-(?P<steps>{INT})(?:-(?P<restarts>{INT}))?"
    examples: ClassVar[tuple[str, ...]] = ("pgd-20", "pgd-50-10")

    steps: Count = 20
    restarts: Count = 1
    step_size: Positive | None = None
    loss: Loss = ce

    def params(self, ball: Ball) -> dict[str, Any]:
        return {
            "norm": ball.norm,
            "eps": ball.eps,
            "steps": self.steps,
            "step_size": self.alpha(ball),
            "restarts": self.restarts,
            "random_start": True,
            "loss": self.loss.__name__,
        }

    def alpha(self, ball: Ball) -> float:
        return default_step_size(ball, self.steps) if self.step_size is None else self.step_size

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        if self.restarts == 1:
            return self.once(model, x, y, ball, seed)
        x_adv, left = x.clone(), torch.arange(len(x), device=x.device)
        judge = judge_of(model) or model
        for restart in range(self.restarts):  # on the images that are still classified correctly
            rows = padded(left, len(x))
            found = self.once(model, x[rows], y[rows], ball, seeds.derive(seed, restart))
            with untouched(model), torch.no_grad():
                right = correct(judge(found), y[rows])[: len(left)]
            x_adv[left] = found[: len(left)]
            left = left[right]
            if len(left) == 0:
                break
        return x_adv

    def once(self, model: nn.Module, x: Tensor, y: Tensor, ball: Ball, seed: int) -> Tensor:
        """One restart."""
        return pgd(
            model,
            x,
            y,
            ball=ball,
            steps=self.steps,
            step_size=self.step_size,
            loss=self.loss,
            generator=seeds.generator(seed, 0, "attack", device=x.device),
        )

    def searches_harder(self, other: Attack, ball: Ball) -> bool:
        if isinstance(other, FGSM):
            return self.loss is ce and self.steps > 1 and self.steps * self.alpha(ball) >= ball.eps
        return (
            isinstance(other, PGD)
            and self.loss is other.loss
            and self.steps >= other.steps
            and self.restarts >= other.restarts
            and (self.steps, self.restarts) != (other.steps, other.restarts)
        )
