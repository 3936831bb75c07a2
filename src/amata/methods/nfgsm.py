"""N-FGSM (de Jorge et al. 2022, arXiv 2202.01181): one step from strong noise, without clipping.

u = (1, alpha). The noise is uniform in k eps with k = 2, and the result is not clipped to the ball:
a training image may be k eps + K alpha away from the clean one. This keeps a single-step method
from catastrophic overfitting.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.quantity import Positive
from amata.schedules import Control


@dataclass(frozen=True, kw_only=True)
class NFGSM(Method):
    may_collapse: ClassVar[bool] = True
    noise: Positive = 2.0
    """k: the noise is uniform in k eps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scaled_ball("noise")

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y = batch.x, batch.y
        # x + eta, eta ~ U(-k eps, k eps)
        x_noisy = self.scaled_ball("noise").around(x).start(rng, batch.rows)
        x_adv = x_noisy
        for _ in range(u.steps):  # one step in the paper
            g = net.input_grad(x_adv, y)
            # delta = eta + alpha sign g, not clipped to eps
            x_adv = (x_adv + u.step_size * self.ball.direction(g)).clamp(0, 1)
        net.backward(x_adv, y)
        net.apply()
