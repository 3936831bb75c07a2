"""Free adversarial training (Shafahi et al. 2019, arXiv 1904.12843): one pass for both gradients.

u = (m, alpha): every batch is replayed m times, and each replay moves the noise by alpha. Amata
raises m and lowers alpha. As in the reference code the noise is one tensor, zero at the start of
training and not reset: row i of a batch starts with the noise of row i of the previous batch. Only
images of another size begin at zero again.
Clamped pixels pass no gradient and do not move.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.schedules import Control


@dataclass(frozen=True, kw_only=True)
class Free(Method):
    memory_rows: ClassVar[tuple[str, ...]] = ("noise",)
    min_steps: ClassVar[int] = 1

    @property
    def whole_batch(self) -> bool:
        return True  # every replay updates the weights

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, n = batch.x, batch.y, len(batch.x)
        noise = memory["noise"] = memory.get("noise", torch.zeros_like(x)).to(x.device)
        if noise.shape[1:] != x.shape[1:]:  # the schedule changed the size of the images
            noise = memory["noise"] = torch.zeros_like(x)
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
