"""Dynamic adversarial training (Wang et al. 2019, ICML): stop a sample once its FOSC is small.

The first-order stationary condition is FOSC(x_k) = eps |g|_dual - <x_k - x_0, g>, with g the
sample's own gradient at x_k. u = (K, alpha): at most K steps. After the first step a sample stops
once FOSC <= c_t, and c_t falls from c_max to 0 over `dynamic_epochs`. In the paper x_0 is the
natural image. The reference code takes the random start (`centre = "start"`), and FOSC may then be
negative. The reference also weights each sample's loss by itself; the paper does not, nor do we.
Finished samples leave the batch.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import Count, NotNegative
from amata.schedules import Control


@dataclass(frozen=True, kw_only=True)
class DAT(Method):
    c_max: NotNegative = 0.5
    """The FOSC at which samples stop in the first epoch."""
    dynamic_epochs: Count = 100
    """Epochs over which that falls to 0."""
    centre: Literal["natural", "start"] = "natural"
    """What FOSC is measured from: the image, or the random start as in the reference."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y = batch.x, batch.y
        c = max(0.0, self.c_max * (1 - batch.epoch / self.dynamic_epochs))  # c_t
        region = self.ball.around(x)
        x_adv = now = region.start(rng, batch.rows)
        centre = x if self.centre == "natural" else now
        active = torch.arange(len(x), device=x.device)
        for k in range(u.steps):
            g = net.input_grad(now, y[active])
            if k > 0:
                stays = (self.ball.fosc(now, centre[active], g) > c).nonzero().squeeze(1)
                if len(stays) < len(active):
                    x_adv = x_adv.index_copy(0, active, now)
                    active, now, g = (t[stays] for t in (active, now, g))
                    region = self.ball.around(x[active])
                if len(active) == 0:
                    break
            now = region.project(region.ascend(now, g, u.step_size))
        net.backward(x_adv.index_copy(0, active, now), y)
        net.apply()
