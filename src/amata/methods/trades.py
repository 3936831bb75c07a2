"""TRADES (Zhang et al. 2019, arXiv 1901.08573): clean cross-entropy + beta KL(clean, adversarial).

u = (K, alpha): K steps up KL(p(x) || p(x')) from x + 0.001 N(0, 1), clipped to [0, 1]. The attack
computes the clean logits once, not once per step as the reference code does; in eval mode only the
cost differs. The gradients of the update flow through both p(x) and p(x'). The clean term is the
plain cross-entropy, without label smoothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import ce, kl
from amata.methods.contract import Memory, Method, Net
from amata.quantity import NotNegative
from amata.schedules import Control
from amata.seeds import draw


@dataclass(frozen=True, kw_only=True)
class TRADES(Method):
    own_loss: ClassVar[bool] = True
    beta: NotNegative = 6.0
    """The weight of the robust term."""
    noise: NotNegative = 0.001
    """Standard deviation of the start."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        z = net.logits(x)
        noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        x_adv = region.project(x + self.noise * noise)
        x_adv = net.ascent(region, x_adv, z, u.steps, u.step_size, loss=kl)  # k = 1 .. K
        net.backward((x, x_adv), y, loss=trades_loss(self.beta))
        net.apply()


@cache  # one function for each beta: an engine compiles every function that it is given
def trades_loss(beta: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def loss(z: Tensor, z_adv: Tensor, y: Tensor) -> Tensor:
        return ce(z, y) + beta * kl(z_adv, z)

    return loss
