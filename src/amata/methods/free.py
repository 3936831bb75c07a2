"""Free adversarial training (Shafahi et al. 2019, arXiv 1904.12843): one backward pass serves the
weights and the noise.

u = (m, alpha): every batch is replayed m times, and each replay moves the noise by alpha. Amata on
it raises m and lowers alpha. As in the reference the noise is one tensor, zero once and never
reset: row i of a batch begins with what row i of the batch before it ended with. Clamped pixels
pass no gradient and do not move.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Net
from amata.schedules import Control
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class Free:
    updates_often: ClassVar[bool] = True  # in every replay, so a batch cannot come in parts
    memory_rows: ClassVar[tuple[str, ...]] = ("noise",)
    ball: Ball

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, n = batch.x, batch.y, len(batch.x)
        noise = memory["noise"] = memory.get("noise", torch.zeros_like(x)).to(x.device)
        if len(noise) < n:  # the first batch seen was a short one
            noise = memory["noise"] = torch.cat([noise, torch.zeros_like(x[len(noise) :])])
        for _ in range(u.steps):  # i = 1 .. m
            moved = x + noise[:n]
            x_adv = moved.clamp(0, 1)
            g = net.backward(x_adv, y, wrt_input=True)  # g_theta and g_adv from one pass
            assert g is not None
            g = torch.where(moved == x_adv, g, 0)
            # delta <- clip(delta + alpha sign g_adv)
            noise[:n] = self.ball.limit(noise[:n] + u.step_size * self.ball.direction(g))
            net.apply()  # theta <- theta - eta g_theta, which belongs to the old delta
