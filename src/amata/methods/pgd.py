"""PGD adversarial training (Madry et al. 2018, arXiv 1706.06083), annealed by Amata
(Ye et al. 2021, arXiv 2012.08112, Algorithm 1).

The schedule gives u_t = (K_t, alpha_t): `Constant` makes this PGD-K training, `Linear` makes it
Amata. The paper's box evaluates the gradient at x^k inside the update of x^k; it is the gradient at
x^(k-1). The box has no random start. Madry's training has one, and so do the reference runs that
the paper compares with; `random_start` is the choice. With K_t = 0 training is on the start itself:
a random point of the ball, or the clean image.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import Positive
from amata.schedules import Control
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class PGD(Method):
    may_collapse: ClassVar[bool] = True
    random_start: bool = True
    """Whether the attack starts at a random point of the ball."""
    clean_term: bool = False
    """Whether the clean loss is added, as the PGD baseline of YOPO's code does and Madry's training
    does not."""
    reach: Positive = 1.0
    """How far training images may be moved, in eps: beyond 1, against more than the model is tested
    against."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.training_ball

    @property
    def training_ball(self) -> Ball:
        return self.scaled_ball("reach")

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.training_ball.around(batch.x)
        x_adv = region.start(rng, batch.rows) if self.random_start else x  # x^0
        # k = 1 .. K_t: x^k = P(x^(k-1) + alpha_t sign grad_x l(x^(k-1), y))
        x_adv = net.ascent(region, x_adv, y, u.steps, u.step_size)
        net.backward(x_adv, y)
        if self.clean_term:
            net.backward(x, y)
        net.apply()  # theta <- theta - eta grad l(x^K, y)
