"""Friendly adversarial training (Zhang et al. 2020, arXiv 2002.11242): stop soon after an error.

u = (K, alpha): at most K steps. A sample stops tau steps after it is first misclassified, with the
image that it had before the step. `tau` holds (first epoch, tau) stages, as in the reference's
dynamic schedule: [[0, 0], [50, 1], [90, 2]]. Finished samples leave the batch and cost nothing.
`omega` is the reference's small noise in every step.
"""

from dataclasses import dataclass

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import NotNegative, Stages
from amata.schedules import Control
from amata.seeds import draw


@dataclass(frozen=True, kw_only=True)
class FAT(Method):
    tau: Stages = ((0, 0),)
    """(First epoch, tau) stages: how many more steps a sample is attacked after its first error."""
    omega: NotNegative = 0.001
    """Standard deviation of the noise in every step."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y = batch.x, batch.y
        region = self.ball.around(x)
        x_adv = now = region.start(rng, batch.rows)
        patience = torch.full_like(y, [tau for first, tau in self.tau if first <= batch.epoch][-1])
        active = torch.arange(len(x), device=x.device)
        for _ in range(u.steps):  # k = 1 .. K, on those still attacked
            g, z = net.input_grad_and_logits(now, y[active])
            wrong = z.argmax(1) != y[active]
            # wrong with no patience left: done, with the image as it is
            stays = (~wrong | (patience > 0)).nonzero().squeeze(1)
            patience = patience - wrong.long()
            if len(stays) < len(active):
                x_adv = x_adv.index_copy(0, active, now)
                active, patience, now, g = (t[stays] for t in (active, patience, now, g))
                region = self.ball.around(x[active])
            if len(active) == 0:
                break
            moved = region.ascend(now, g, u.step_size)
            if batch.rows is None:
                noise = draw(torch.randn, rng, moved.shape, x.device, x.dtype)
            else:  # a part of a batch takes its rows of the whole batch's noise
                noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)[active]
            moved = moved + self.omega * noise
            now = region.project(moved)
        net.backward(x_adv.index_copy(0, active, now), y)
        net.apply()
