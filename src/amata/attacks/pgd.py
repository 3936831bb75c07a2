"""Projected gradient descent (Madry et al. 2018, arXiv 1706.06083) and its one-step case FGSM
(Goodfellow et al. 2015, arXiv 1412.6572).

x^0 = a random point of the ball;  x^k = P( x^(k-1) + alpha * direction(grad_x loss(x^(k-1))) ),  k
= 1 .. K with the sign of the gradient as direction in L-inf, and the normalised gradient in L2.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_model, input_grad, untouched
from amata.errors import InputError
from amata.losses import Loss, ce, margin
from amata.seeds import generator
from amata.threat import Ball, check_ball


def default_step_size(ball: Ball, steps: int) -> float:
    """2.5 eps / K: Madry's rule, so that K steps can cross the ball and still come back; eps itself
    for one step."""
    return ball.eps if steps == 1 else 2.5 * ball.eps / max(steps, 1)


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    loss: Loss = ce,
    targets: Tensor | None = None,
) -> Tensor:
    """One step of length eps from the image itself."""
    return pgd(
        model,
        x,
        y,
        ball=ball,
        steps=1,
        step_size=ball.eps,
        loss=loss,
        random_start=False,
        targets=targets,
    )


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
    seed: int = 0,
) -> Tensor:
    """K projected steps up the loss; with several restarts each sample keeps its own worst case.

    `start` begins at a given point (the first restart only). `targets` turns the attack into a
    targeted one: it descends the loss towards those labels. `step_size` is 2.5 eps / K unless
    given.
    """
    check_ball(ball)
    check_images(x, y if targets is None else targets)
    if steps < 0 or restarts < 1:
        raise InputError(
            f"steps = {steps} must not be negative and restarts = {restarts} must be at least 1"
        )
    alpha = default_step_size(ball, steps) if step_size is None else step_size
    goal = y if targets is None else targets
    climb: Loss = loss if targets is None else lambda z, t: -loss(z, t)
    region = ball.around(x)
    with untouched(model):
        check_model(model, x, goal)
        worst: _Candidates | None = None
        for restart in range(restarts):
            if start is not None and restart == 0:
                x_adv = region.project(start)
            elif random_start or restart > 0:
                x_adv = region.start(generator(seed, restart, "attack", device=x.device))
            else:
                x_adv = x
            for _ in range(steps):
                g = input_grad(model, x_adv, goal, climb)
                x_adv = region.project(region.ascend(x_adv, g, alpha))
            if restarts == 1:
                return x_adv.detach()
            with torch.no_grad():
                z = model(x_adv)
                hit = z.argmax(1) != y if targets is None else z.argmax(1) == targets
                candidates = _Candidates(x_adv.detach(), hit, climb(z, goal))
            worst = candidates if worst is None else worst.or_worse(candidates)
    assert worst is not None
    return worst.x


class _Candidates(NamedTuple):
    """One adversarial image per sample, whether it fools the model, and its loss."""

    x: Tensor
    hit: Tensor
    loss: Tensor

    def or_worse(self, other: "_Candidates") -> "_Candidates":
        """Per sample the worse of the two: one that fools the model before one that does not, then
        the higher loss."""
        take = (other.hit & ~self.hit) | ((other.hit == self.hit) & (other.loss > self.loss))
        x = torch.where(take.view(-1, *[1] * (self.x.dim() - 1)), other.x, self.x)
        return _Candidates(
            x, torch.where(take, other.hit, self.hit), torch.where(take, other.loss, self.loss)
        )


def cw_pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    seed: int = 0,
) -> Tensor:
    """PGD on Carlini and Wagner's margin max_{i != y} z_i - z_y inside the ball: what many papers
    call the CW attack."""
    return pgd(
        model,
        x,
        y,
        ball=ball,
        steps=steps,
        step_size=step_size,
        loss=margin,
        restarts=restarts,
        seed=seed,
    )
