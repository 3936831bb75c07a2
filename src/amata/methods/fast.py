"""Fast adversarial training, FGSM-RS (Wong, Rice & Kolter 2020, arXiv 2001.03994): one step.

u = (K, alpha): K = 1 from a random start is the method; more steps are allowed. K = 0 is the weak
version for early epochs. Of Amata+Fast the paper says only that the weak version uses "a fixed
non-zero initialization". `weak = "fixed"` takes this literally: all samples start from one noise
image, drawn once, and the gradient step follows as usual (two passes). `weak = "skip"` trains on
that start directly (one pass); only this saves time. As in the reference code alpha is 1.25 eps and
the step is clipped to the ball.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.schedules import Control
from amata.threat import Region


@dataclass(frozen=True, kw_only=True)
class Fast(Method):
    may_collapse: ClassVar[bool] = True
    memory_rows: ClassVar[tuple[str, ...]] = ("previous",)
    init: Literal["random", "zero", "previous", "fixed"] = "random"
    """Where the attack starts."""
    weak: Literal["fixed", "skip"] = "fixed"
    """What K = 0 means: one step from a fixed noise image, or training on that image directly."""

    @property
    def whole_batch(self) -> bool:
        return self.init == "previous"

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
            fits = len(previous) >= len(x) and previous.shape[1:] == x.shape[1:]
            memory["previous"] = previous if fits else torch.zeros_like(x)
        if init == "random":
            return region.start(rng, batch.rows)
        if init == "zero":
            return x
        if init == "previous":  # row i begins where row i of the last batch ended
            return region.project(x + memory["previous"][: len(x)])
        # grey images are far from the box, so the draw is the whole ball's
        if "fixed" not in memory or memory["fixed"].shape[1:] != x.shape[1:]:
            grey = torch.full_like(x[:1], 0.5)
            memory["fixed"] = self.ball.around(grey).start(rng) - grey
            memory["fixed_eps"] = torch.tensor(self.ball.eps, dtype=torch.float64)
        # The radius may have grown since (train.eps_warmup), and the noise grows with it.
        growth = self.ball.eps / float(memory["fixed_eps"])
        return region.project(x + growth * memory["fixed"].to(x.device))
