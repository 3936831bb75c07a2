"""TRADES (Zhang et al. 2019, arXiv 1901.08573): clean cross-entropy plus beta times the KL
divergence between clean and adversarial.

u = (K, alpha): K steps up KL(p(x) || p(x')). The start is x + 0.001 N(0, 1), boxed. The clean
logits of the attack are computed once, not once a step as in the reference, which in eval mode
changes nothing but the cost; gradients of the update flow through both p(x) and p(x'). The clean
term is the plain cross-entropy; label smoothing is not applied to it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import ce, kl
from amata.methods.contract import Memory, Net
from amata.schedules import Control
from amata.seeds import draw
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class TRADES:
    ball: Ball
    beta: float = 6.0
    """The weight of the robust term."""
    noise: float = 0.001
    """Standard deviation of the start."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        z = net.logits(x)
        noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        x_adv = region.project(x + self.noise * noise)
        x_adv = net.ascent(region, x_adv, z, u.steps, u.step_size, loss=kl)  # k = 1 .. K
        net.backward((x, x_adv), y, loss=self.loss)
        net.apply()

    def loss(self, z: Tensor, z_adv: Tensor, y: Tensor) -> Tensor:
        return ce(z, y) + self.beta * kl(z_adv, z)
