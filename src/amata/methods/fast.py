"""Fast adversarial training, FGSM-RS (Wong, Rice & Kolter 2020, arXiv 2001.03994): one attack step
from a random start.

u = (K, alpha): K = 1 is the method (more steps may be asked for), K = 0 its weak version for early
epochs. The paper says of Amata+Fast only that the weak version uses "a fixed non-zero
initialization". `weak = "fixed"` reads that literally: one noise image, drawn once, is everybody's
start, and the gradient step follows as always (two passes). `weak = "skip"` trains on that start
itself (one pass), which alone can save time. As in the reference alpha is 1.25 eps, and the step is
clipped to the ball.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from amata.batch import Batch
from amata.methods.contract import Memory, Net
from amata.schedules import Control
from amata.threat import Ball, Region


@dataclass(frozen=True, kw_only=True)
class Fast:
    may_collapse: ClassVar[bool] = True  # with a single step
    memory_rows: ClassVar[tuple[str, ...]] = ("previous",)
    ball: Ball
    init: Literal["random", "zero", "previous", "fixed"] = "random"
    """Where the attack begins."""
    weak: Literal["fixed", "skip"] = "fixed"
    """What K = 0 means: a step from one fixed noise image, or training on that start itself."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        weak = u.steps == 0
        x_adv = self._start(batch, region, rng, memory, "fixed" if weak else self.init)
        steps = u.steps if not weak else 1 if self.weak == "fixed" else 0
        # delta <- clip(delta + alpha sign g)
        x_adv = net.ascent(region, x_adv, y, steps, u.step_size)
        if self.init == "previous":
            memory["previous"][: len(x)] = x_adv - x
        net.backward(x_adv, y)
        net.apply()

    def _start(
        self, batch: Batch, region: Region, rng: torch.Generator, memory: Memory, init: str
    ) -> Tensor:
        x = batch.x
        if self.init == "previous":
            previous = memory.get("previous", x[:0]).to(x.device)
            memory["previous"] = previous if len(previous) >= len(x) else torch.zeros_like(x)
        if init == "random":
            return region.start(rng, batch.rows)
        if init == "zero":
            return x
        if init == "previous":  # row i begins where row i of the last batch ended
            return region.project(x + memory["previous"][: len(x)])
        # grey images are far from the box, so the draw is the whole ball's
        if "fixed" not in memory:
            grey = torch.full_like(x[:1], 0.5)
            memory["fixed"] = self.ball.around(grey).start(rng) - grey
        return region.project(x + memory["fixed"].to(x.device))
