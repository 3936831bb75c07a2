"""The Carlini-Wagner L2 attack (Carlini & Wagner 2017, arXiv 1608.04644): the smallest perturbation
that changes the prediction.

minimise over x' in [0, 1]:  |x' - x|_2^2 + c * max(z_y(x') - max_{i != y} z_i(x') + kappa, 0)

This differs from the reference code behind the paper's tables. That code starts at a black image,
leaves [0, 1], uses max(z_y, 0) for z_y, and returns the last iterate even if it fails. Here x'
starts at x and stays in the box, and each sample keeps its nearest success.

Adam updates x' itself, followed by a projection. The original substitutes x' = (tanh(w) + 1) / 2,
which leaves black and white pixels (most of MNIST) in place for hundreds of iterations.

As in the paper, c is one constant by default; `search_steps` enables the original binary search
for each sample's own c. Adam overshoots the boundary and returns slowly, so a few linearised steps
move successes closer at the end. These steps are exact on a linear model.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from amata.attacks.base import INT, Attack
from amata.attacks.checks import check_images, check_model, check_module
from amata.attacks.preserve import untouched
from amata.losses import margin
from amata.quantity import Count, Positive, not_negative, positive, whole
from amata.threat import Ball


def cw_l2(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    c: float = 1.0,
    steps: int = 100,
    lr: float = 0.01,
    kappa: float = 0.0,
    search_steps: int = 0,
) -> Tensor:
    """The nearest adversarial image found for each sample, or the sample itself if there is none.
    No ball limits the distance."""
    check_module(model)
    check_images(x, y)
    c, lr, kappa = positive(c, "c"), positive(lr, "lr"), not_negative(kappa, "kappa")
    steps, search_steps = whole(steps, "steps", 1), whole(search_steps, "search_steps", 0)
    with untouched(model):
        check_model(model, x, y)
        with torch.no_grad():
            lead = margin(model(x), y)
        # The nearest success of an image that is one already is the image itself.
        left = (~((lead > 0) & (lead >= kappa))).nonzero().squeeze(1)
        nearest = x.clone()
        if len(left):
            nearest[left] = _search(model, x[left], y[left], c, steps, lr, kappa, search_steps)
        return nearest


def _search(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    c: float,
    steps: int,
    lr: float,
    kappa: float,
    search_steps: int,
) -> Tensor:
    """The nearest successes for images that are none."""
    nearest, distance = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
    constant = torch.full((len(x),), c, device=x.device)
    low, high = torch.zeros_like(constant), torch.full_like(constant, torch.inf)
    for _ in range(1 + search_steps):
        x_adv = x.clone().requires_grad_()
        adam = torch.optim.Adam([x_adv], lr=lr)
        succeeded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(steps):
            squared = (x_adv - x).flatten(1).square().sum(1)
            lead = margin(model(x_adv), y)
            loss = squared + constant * (kappa - lead).clamp_min(0)
            (g,) = torch.autograd.grad(loss.sum(), x_adv)
            x_adv.grad = torch.nan_to_num(g, 0.0, 0.0, 0.0)
            with torch.no_grad():
                success = (lead > 0) & (lead >= kappa)
                succeeded |= success
                closer = success & (squared < distance)
                distance = torch.where(closer, squared, distance)
                nearest = torch.where(closer.view(-1, *[1] * (x.dim() - 1)), x_adv, nearest)
                adam.step()
                x_adv.clamp_(0, 1)
        # Binary search: decrease c after a success, increase it after a failure (tenfold until
        # the first success).
        high = torch.where(succeeded, torch.minimum(high, constant), high)
        low = torch.where(succeeded, low, torch.maximum(low, constant))
        constant = torch.where(high.isinf(), constant * 10, (low + high) / 2)
    return _pull_to_boundary(model, x, y, nearest.detach(), distance, kappa)


def _pull_to_boundary(
    model: nn.Module, x: Tensor, y: Tensor, nearest: Tensor, squared: Tensor, kappa: float
) -> Tensor:
    """Move successes closer to x: first to the boundaries of nine rival classes, linearised at x,
    then to the boundary linearised at the success itself."""
    with torch.no_grad():
        z = model(x)
        rivals = z.scatter(1, y[:, None], -torch.inf).topk(min(9, z.shape[1] - 1)).indices.T
    found = squared.isfinite()
    for rival in [*rivals, *[None] * 5]:
        point = (x if rival is not None else nearest).detach().requires_grad_()
        z = model(point)
        lead = (
            margin(z, y)
            if rival is None
            else (z.gather(1, rival[:, None]) - z.gather(1, y[:, None])).squeeze(1)
        )
        (g,) = torch.autograd.grad(lead.sum(), point)
        with torch.no_grad():
            # Solve lead + g (x' - point) = kappa for the x' nearest to x, then go 1% further to
            # cross the boundary.
            gap = kappa - lead - (g * (x - point)).flatten(1).sum(1)
            length = gap / g.flatten(1).square().sum(1).clamp_min(1e-12)
            candidate = (x + 1.01 * length.view(-1, *[1] * (x.dim() - 1)) * g).clamp(0, 1)
            reached = margin(model(candidate), y)
            now = (candidate - x).flatten(1).square().sum(1)
            closer = found & (reached > 0) & (reached >= kappa) & (now < squared)
            squared = torch.where(closer, now, squared)
            nearest = torch.where(closer.view(-1, *[1] * (x.dim() - 1)), candidate, nearest)
    return nearest


@dataclass(frozen=True, kw_only=True)
class CarliniWagnerL2(Attack):
    pattern: ClassVar[str] = rf"cw-l2(?:-(?P<steps>{INT}))?"
    examples: ClassVar[tuple[str, ...]] = ("cw-l2", "cw-l2-100")
    in_ball: ClassVar[bool] = False

    steps: Count = 100
    c: Positive = 1.0

    def params(self, ball: Ball) -> dict[str, Any]:
        return {
            "norm": "l2",
            "c": self.c,
            "steps": self.steps,
            "lr": 0.01,
            "kappa": 0.0,
            "pulled_in": True,
        }

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return cw_l2(model, x, y, c=self.c, steps=self.steps)
