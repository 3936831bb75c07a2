"""Dynamic adversarial training (Wang et al. 2019, ICML): stop a sample once its FOSC is small.

The first-order stationary condition is FOSC(x_k) = eps |g|_dual - <x_k - x_0, g>, with g the
sample's own gradient at x_k. u = (K, alpha): at most K steps. After the first step a sample stops
once FOSC <= c_t, and c_t falls from c_max to 0 over `dynamic_epochs`. In the paper x_0 is the
natural image. The reference code takes the random start (`centre = "start"`), and FOSC may then be
negative. The reference also weights each sample's loss by itself; the paper does not, nor do we.
Finished samples leave the batch.

FOSC ignores [0, 1], so it can stay above 0 where no feasible move increases the linearised loss.
With `criterion = "feasible"` samples stop at the feasible gap instead, which is 0 there.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from amata.batch import Batch
from amata.errors import InputError
from amata.methods.contract import Memory, Method, Net
from amata.quantity import Count, NotNegative
from amata.schedules import Control
from amata.threat import Ball, feasible_gap


@dataclass(frozen=True, kw_only=True)
class DAT(Method):
    epoch_fields: ClassVar[tuple[str, ...]] = ("dynamic_epochs",)
    c_max: NotNegative = 0.5
    """The value of the criterion at which samples stop in the first epoch."""
    dynamic_epochs: Count = 100
    """Epochs over which that falls to 0."""
    centre: Literal["natural", "start"] = "natural"
    """What FOSC is measured from: the image, or the random start as in the reference."""
    criterion: Literal["fosc", "feasible"] = "fosc"
    """FOSC as in the paper, or the feasible gap, which takes [0, 1] into account."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.criterion == "feasible" and self.centre == "start":
            raise InputError(
                'centre = "start" applies to FOSC, not to the feasible gap; drop it, or set '
                'criterion = "fosc"'
            )

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        start = region.start(rng, batch.rows)
        c = max(0.0, self.c_max * (1 - batch.epoch / self.dynamic_epochs))  # c_t
        least = torch.full_like(y, c, dtype=x.dtype)
        centre = x if self.centre == "natural" else start
        x_adv = net.ascent(region, start, y, min(u.steps, 1), u.step_size)  # k = 1
        x_adv = net.ascent_while(  # k = 2 .. K
            self.ball,
            x,
            x_adv,
            y,
            u.steps - 1,
            u.step_size,
            goes_on=not_stationary if self.criterion == "fosc" else not_maximal,
            state=(centre, least),
        )
        net.backward(x_adv, y)
        net.apply()


def not_stationary(
    ball: Ball, x_adv: Tensor, y: Tensor, g: Tensor, z: Tensor, centre: Tensor, least: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return ball.fosc(x_adv, centre, g) > least, centre, least


def not_maximal(
    ball: Ball, x_adv: Tensor, y: Tensor, g: Tensor, z: Tensor, x: Tensor, least: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return feasible_gap(ball.around(x), x_adv, g) > least, x, least
