"""Friendly adversarial training (Zhang et al. 2020, arXiv 2002.11242): stop soon after an error.

u = (K, alpha): at most K steps. A sample stops tau steps after it is first misclassified, with the
image that it had before the step. `tau` holds (first epoch, tau) stages, as in the reference's
dynamic schedule: [[0, 0], [50, 1], [90, 2]]. Finished samples leave the batch and cost nothing.
`omega` is the reference's small noise in every step.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import NotNegative, Stages
from amata.schedules import Control
from amata.seeds import Noise
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class FAT(Method):
    epoch_fields: ClassVar[tuple[str, ...]] = ("tau",)
    tau: Stages = ((0, 0),)
    """(First epoch, tau) stages: how many more steps a sample is attacked after its first error."""
    omega: NotNegative = 0.001
    """Standard deviation of the noise in every step."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y = batch.x, batch.y
        x_adv = self.ball.around(x).start(rng, batch.rows)
        patience = torch.full_like(y, [tau for first, tau in self.tau if first <= batch.epoch][-1])
        x_adv = net.ascent_while(  # k = 1 .. K
            self.ball,
            x,
            x_adv,
            y,
            u.steps,
            u.step_size,
            goes_on=friendly,
            state=(patience,),
            noise=Noise(self.omega, rng, batch.rows),
        )
        net.backward(x_adv, y)
        net.apply()


def friendly(
    ball: Ball, x_adv: Tensor, y: Tensor, g: Tensor, z: Tensor, patience: Tensor
) -> tuple[Tensor, Tensor]:
    """Wrong with no patience left: done, with the image as it is."""
    wrong = z.argmax(1) != y
    return ~wrong | (patience > 0), patience - wrong.long()
