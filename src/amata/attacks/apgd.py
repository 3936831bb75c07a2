"""Auto-PGD (Croce & Hein 2020, arXiv 2003.01690): projected ascent with momentum whose step size
halves by itself.

Each image starts with the step 2 eps. At checkpoints, which come closer as the attack goes on, an
image halves its step if its loss rose in fewer than 3/4 of the steps since the last checkpoint, or
if neither its step nor its best loss has changed since. It then continues at its best point.

The losses are the cross-entropy, the difference of logits ratio (DLR), which no scaling of the
logits changes, and its targeted form.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.attacks.survivors import Found, Working, choose, per_image
from amata.losses import ce, correct
from amata.threat import Ball

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A loss of logits, labels and target classes to ascend, one value per sample."""

RISES = 0.75
"""The share of rising steps up to which the step size is halved."""
MOMENTUM = 0.25


def untargeted_ce(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    return ce(z, y)


def dlr(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """-(z_y - max_{i != y} z_i) / (z_1st - z_3rd)."""
    best = z.topk(3).values
    rival = torch.where(z.argmax(1) == y, best[:, 1], best[:, 0])
    return (rival - _logit(z, y)) / (best[:, 0] - best[:, 2] + 1e-12)


def targeted_dlr(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """-(z_y - z_target) / (z_1st - (z_3rd + z_4th) / 2)."""
    best = z.topk(4).values
    spread = best[:, 0] - (best[:, 2] + best[:, 3]) / 2 + 1e-12
    return (_logit(z, target) - _logit(z, y)) / spread


def _logit(z: Tensor, index: Tensor) -> Tensor:
    return z.gather(1, index[:, None]).squeeze(1)


@dataclass
class _Ascent(Working):
    target: Tensor
    point: Tensor
    previous: Tensor
    g: Tensor
    """The gradient at `point`."""
    best: Tensor
    """The point of the largest loss, with its loss and gradient."""
    best_loss: Tensor
    best_g: Tensor
    broken_loss: Tensor
    """The loss of `x_adv` where broken."""
    step: Tensor
    last_loss: Tensor
    rises: Tensor
    """Of the loss, since the last checkpoint."""
    checked_loss: Tensor
    """The best loss at the last checkpoint."""
    halved: Tensor
    """Whether the step was halved at the last checkpoint."""


def apgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    objective: Objective,
    rng: torch.Generator,
    found: Found,
    targets: Tensor | None = None,
    steps: int = 100,
    repeats: int = 1,
) -> None:
    """One run of Auto-PGD on the images that are not broken yet, written into `found`.

    `targets` are target classes for all images of x. `repeats` gradients are averaged, for models
    with random outputs. An image is done once it is misclassified.
    """
    left = found.left()
    if len(left) == 0:
        return
    a = _start(model, found, left, x, y if targets is None else targets, y, ball, rng)
    gap = max(int(0.22 * steps), 1)
    least_gap, less = max(int(0.06 * steps), 1), max(int(0.03 * steps), 1)
    since = 0
    region = ball.around(a.x)
    for i in range(-1, steps):
        if i >= 0:
            moved = region.project(region.ascend(a.point, a.g, per_image(a.step, a.x)))
            if i > 0:
                inertia = a.point - a.previous
                moved = region.project(
                    a.point + (1 - MOMENTUM) * (moved - a.point) + MOMENTUM * inertia
                )
            a.previous, a.point = a.point, moved
        a.g, loss, right = _gradient(model, a, objective, repeats)
        _keep_broken(a, loss, ~right)
        better = loss > a.best_loss
        a.best, a.best_g = choose(better, a.point, a.best), choose(better, a.g, a.best_g)
        a.best_loss = torch.where(better, loss, a.best_loss)
        if i < 0:
            a.checked_loss = a.best_loss
            continue
        a.rises = a.rises + (loss > a.last_loss)
        a.last_loss = loss
        since += 1
        if since == gap:
            _halve(a, gap)
            gap, since = max(gap - less, least_gap), 0
        if i in (2, 4) or i % 10 == 9:
            shrunk = found.shrink(a)
            if shrunk is None:
                return
            if shrunk is not a:
                a, region = shrunk, ball.around(shrunk.x)
    found.keep(a)


def _start(
    model: nn.Module,
    found: Found,
    left: Tensor,
    x: Tensor,
    target: Tensor,
    y: Tensor,
    ball: Ball,
    rng: torch.Generator,
) -> _Ascent:
    """A random point of the ball's surface for each image."""
    w = found.working(left, x, y)
    draw = torch.rand if ball.norm == "linf" else torch.randn
    noise = draw((len(left), *x.shape[1:]), generator=rng, device=x.device, dtype=x.dtype)
    noise = 2 * noise - 1 if ball.norm == "linf" else noise
    length = ball.distance(noise, torch.zeros_like(noise))
    noise = ball.eps * noise / (per_image(length, noise) + 1e-12)
    order = torch.arange(len(w.row), device=x.device) % len(left)
    point = (w.x + noise[order]).clamp(0, 1)
    zeros, lowest = x.new_zeros(len(w.row)), x.new_full((len(w.row),), -torch.inf)
    return _Ascent(
        **vars(w),
        target=target[left][order],
        point=point,
        previous=point,
        g=torch.zeros_like(point),
        best=point,
        best_loss=lowest,
        best_g=torch.zeros_like(point),
        broken_loss=lowest,
        step=zeros + 2 * ball.eps,
        # The authors' code compares the first loss with 0.
        last_loss=zeros,
        rises=zeros,
        checked_loss=lowest,
        halved=torch.ones_like(w.broken),
    )


def _gradient(
    model: nn.Module, a: _Ascent, objective: Objective, repeats: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean gradient at the points; the loss and whether the prediction is right, both of the
    last evaluation."""
    total = torch.zeros_like(a.x)
    for _ in range(repeats):
        point = a.point.detach().requires_grad_()
        z = model(point)
        loss = objective(z, a.y, a.target)
        (g,) = torch.autograd.grad(loss.sum(), point)
        total = total + torch.nan_to_num(g, 0.0, 0.0, 0.0)
    return total / repeats, loss.detach(), correct(z.detach(), a.y)


def _keep_broken(a: _Ascent, loss: Tensor, wrong: Tensor) -> None:
    """Of an image's misclassified points keep the one with the largest loss: rounding changes its
    class least."""
    value = torch.nan_to_num(loss, -torch.inf, torch.inf, -torch.inf)
    keep = wrong & (~a.broken | (value > a.broken_loss))
    a.x_adv = choose(keep, a.point, a.x_adv)
    a.broken_loss = torch.where(keep, value, a.broken_loss)
    a.broken = a.broken | wrong


def _halve(a: _Ascent, gap: int) -> None:
    """A checkpoint, `gap` steps after the last one."""
    stuck = ~a.halved & (a.checked_loss >= a.best_loss)
    a.halved = (a.rises <= RISES * gap) | stuck
    a.checked_loss = a.best_loss
    a.rises = torch.zeros_like(a.rises)
    a.step = torch.where(a.halved, a.step / 2, a.step)
    a.point, a.g = choose(a.halved, a.best, a.point), choose(a.halved, a.best_g, a.g)
