"""YOPO-m-n (Zhang et al. 2019, arXiv 1905.00877): m full passes, each with n first-layer steps.

u = (m, sigma): m full forward-backward passes per batch, and n ascent steps of size sigma through
the first layer after each. Amata raises m with m sigma fixed. Write f_0 for the first layer and
p = dl/df_0 for the co-state of a full pass. While p is held, the gradient of the loss at the image
is approximated by that of <p, f_0(x)>. For layer one the paper takes the co-state gradient at the
new image alone; the reference code adds the gradient of the full pass. With the paper's form the
ReLUs of the first layer may die (docs/paper.md); `layer_one` is the choice.

The paper sums the weight gradients of the m passes and divides the learning rate by m. With an
annealed m the length of an update then rises with m, as if the learning rate rose. `pass_average`
takes their mean instead: for a constant m, learning rate m lr with the mean is learning rate lr
with the sum. The built-in recipes with a constant m take the sum, those that anneal m the mean.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import Count
from amata.schedules import Control


@dataclass(frozen=True, kw_only=True)
class YOPO(Method):
    min_steps: ClassVar[int] = 1
    inner: Count = 10
    """n: cheap steps through the first layer after each full pass."""
    layer_one: Literal["paper", "reference"] = "reference"
    """Whether layer one gets the new image's gradient alone, or the full pass's too."""
    pass_average: bool = False
    """Whether weight gradients are averaged over the m passes, not summed; for schedules of m."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        y, region = batch.y, self.ball.around(batch.x)
        x_adv = region.start(rng, batch.rows)  # x^(1,0)
        # Ascent steps do not depend on the length of p, weight gradients are proportional to it.
        scale = 1 / u.steps if self.pass_average else 1.0
        for _ in range(u.steps):  # j = 1 .. m
            # full pass: p, and the gradients of the other layers
            p = net.costate(x_adv, y, first=self.layer_one == "reference", scale=scale)
            # s = 0 .. n - 1: steps along grad_x <p, f_0(x)>
            x_adv = net.first_ascent(region, x_adv, p, self.inner, u.step_size)
            net.first_backward(x_adv, p)  # layer one's gradient at the new image
        net.apply()
