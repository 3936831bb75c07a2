"""MART (Wang et al. 2020, ICLR): boosted cross-entropy + beta KL, more for misclassified images.

u = (K, alpha): K steps up the cross-entropy from x + 0.001 N(0, 1), clipped to [0, 1]. The update
minimises CE(x', y) - log(1 - max_{k != y} p_k(x')) + beta KL(p(x) || p(x')) (1 - p_y(x)), with
gradients through every factor. The reference code adds constants inside its logarithms: its second
term is -log(1.0001 - p_k), at most 9.2, and has almost no gradient where p_k is within 1e-4 of 1.
We compute the paper's formula from logits, which needs no constants: there the gradient stays, and
such images are the ones that MART is about. Its two programs disagree on beta: 5 for ResNet-18, 6
for WRN-34-10. Label smoothing does not apply.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import ce, kl, runner_up
from amata.methods.contract import Memory, Method, Net
from amata.quantity import NotNegative
from amata.schedules import Control
from amata.seeds import draw


@dataclass(frozen=True, kw_only=True)
class MART(Method):
    may_collapse: ClassVar[bool] = True
    own_loss: ClassVar[bool] = True
    beta: NotNegative = 5.0
    """The weight of the KL term."""
    noise: NotNegative = 0.001
    """Standard deviation of the start."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        x_adv = region.project(x + self.noise * noise)
        x_adv = net.ascent(region, x_adv, y, u.steps, u.step_size, loss=ce)  # k = 1 .. K
        net.backward((x, x_adv), y, loss=mart_loss(self.beta))
        net.apply()


@cache  # one function for each beta: an engine compiles every function that it is given
def mart_loss(beta: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def loss(z: Tensor, z_adv: Tensor, y: Tensor) -> Tensor:
        doubt = -torch.expm1(-ce(z, y))  # 1 - p_y(x)
        return ce(z_adv, y) + runner_up(z_adv, y) + beta * kl(z_adv, z) * doubt

    return loss
