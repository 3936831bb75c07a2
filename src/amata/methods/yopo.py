"""YOPO-m-n (Zhang et al. 2019, arXiv 1905.00877): m full passes, and n cheap ascent steps through
the first layer after each.

u = (m, sigma): m full forward-backward passes a batch, sigma the step of the first-layer steps.
Amata on it raises m with m sigma fixed. Write f_0 for the first layer and p = dl/df_0 for the
co-state that a full pass leaves there. The gradient of the whole net's loss with respect to the
image is then approximated by that of <p, f_0(x)> while p is held. Weight gradients are summed over
the m passes (divide the rate by m). Layer one: the paper takes the co-state gradient at the new
image alone; the reference adds the full pass's own. `layer_one` chooses: with the paper's form the
first layer's ReLUs may die (docs/paper.md).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Net
from amata.quantity import whole
from amata.schedules import Control
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class YOPO:
    ball: Ball
    inner: int = 10
    """n: cheap steps through the first layer after each full pass."""
    layer_one: Literal["paper", "reference"] = "reference"
    """Whether layer one gets the new image's gradient alone, or the full pass's too."""

    def __post_init__(self) -> None:
        whole(self.inner, "inner", 1)

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        y, region = batch.y, self.ball.around(batch.x)
        x_adv = region.start(rng, batch.rows)  # x^(1,0)
        for _ in range(u.steps):  # j = 1 .. m
            # full pass: p, and the gradients of the other layers
            p = net.costate(x_adv, y, first=self.layer_one == "reference")
            for _ in range(self.inner):  # s = 0 .. n - 1
                g = net.first_grad(x_adv, p)  # grad_x <p, f_0(x)>
                x_adv = region.project(region.ascend(x_adv, g, u.step_size))
            net.first_backward(x_adv, p)  # layer one's gradient at the new image
        net.apply()
