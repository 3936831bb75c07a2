"""PGD on Carlini and Wagner's margin, inside the ball: what many papers call the CW attack.

It ascends max_{i != y} z_i - z_y (Carlini & Wagner 2017, arXiv 1608.04644) instead of the
cross-entropy.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from amata.attacks.base import INT
from amata.attacks.projected_gradient_descent import PGD, pgd
from amata.losses import Loss, margin
from amata.threat import Ball


def cw_pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`pgd` on the margin; the arguments mean the same."""
    return pgd(
        model,
        x,
        y,
        ball=ball,
        steps=steps,
        step_size=step_size,
        loss=margin,
        restarts=restarts,
        generator=generator,
    )


@dataclass(frozen=True, kw_only=True)
class MarginPGD(PGD):
    pattern: ClassVar[str] = rf"cw-pgd-(?P<steps>{INT})(?:-(?P<restarts>{INT}))?"
    examples: ClassVar[tuple[str, ...]] = ("cw-pgd-20",)

    loss: Loss = margin
