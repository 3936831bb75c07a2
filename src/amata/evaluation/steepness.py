"""How steep the loss is around images: the norm of the input gradient, and how much the gradient
changes over the ball."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.attacks.preserve import input_grad, untouched
from amata.losses import ce
from amata.threat import Ball


class Steepness(NamedTuple):
    """One number per image, of the cross-entropy l."""

    gradient_l1: Tensor
    """|grad_x l|_1: times eps, the most that a small L-inf ball raises the linearised loss."""
    gradient_l2: Tensor
    """|grad_x l|_2."""
    curvature: Tensor
    """|grad_x l(x') - grad_x l(x)|_2 / |x' - x|_2, where x' maximises the linearised loss over the
    ball and [0, 1]: a lower bound of the Lipschitz constant of the gradient there. 0 if x' = x."""


def steepness(model: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Steepness:
    """Measure at the images x. Two gradient evaluations; the model is left unchanged."""
    with untouched(model):
        g = input_grad(model, x, y, ce)
        corner = ball.around(x).maximiser(g)
        change = input_grad(model, corner, y, ce) - g
    moved = (corner - x).flatten(1).norm(dim=1)
    bent = change.flatten(1).norm(dim=1) / moved
    rows = g.flatten(1)
    return Steepness(
        rows.norm(p=1, dim=1),
        rows.norm(dim=1),
        torch.where(moved > 0, bent, torch.zeros_like(bent)),
    )
