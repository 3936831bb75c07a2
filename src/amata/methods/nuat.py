"""NuAT (Sriramanan et al. 2021, NeurIPS): clean cross-entropy + lambda |f(x) - f(x')|_* / batch.

|.|_* is the nuclear norm, the sum of the singular values, of the matrix with a row of logit
differences per image of the batch. u = (K, alpha): K = 1 is NuAT, K = 2 the paper's NuAT2, and
alpha = eps in both. The start is x + (eps / 2) random signs. The attack ascends CE + lambda |.|_* /
batch in half of its steps and CE in the others: with one step every second batch has the norm, with
more steps every second step has it, beginning with the first. lambda rises linearly from 0 over
`rise` epochs. The reference computes the attack's clean logits in train mode, we in the mode of the
attack; it divides a smaller last batch's norm by the usual size, we by its own; it counts batches
from 0 in every epoch, we go on counting, and only batches with one step: with K = 1.5 they
alternate with others.

Singular values are not computed: the norm's gradient is the polar factor, by Newton-Schulz
(`amata.losses.nuclear`). Class weights multiply each image's share of the norm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Self

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import Loss, ce, nuclear
from amata.methods.contract import Memory, Method, Net
from amata.quantity import NotNegative, Whole
from amata.schedules import Control
from amata.seeds import draw


@dataclass(frozen=True, kw_only=True)
class NuAT(Method):
    may_collapse: ClassVar[bool] = True
    joint_loss: ClassVar[bool] = True
    weight: NotNegative = 4.5
    """The largest lambda, the weight of the nuclear norm."""
    rise: Whole = 90
    """Epochs over which lambda rises from 0; with 0 it is constant."""
    noise: NotNegative = 0.5
    """How far the start is from the image, in eps."""

    def stretched(self, factor: float) -> Self:
        """Rounded down: lambda reaches its weight within the run."""
        return replace(self, rise=math.floor(self.rise * factor + 1e-9))

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        count = memory["batches"] = memory.get("batches", torch.tensor(-1)) + int(u.steps == 1)
        # lambda as a tensor: as a number it would be compiled anew in every epoch
        weight = x.new_full((1,), self._weight(batch.epoch))
        noise = draw(torch.rand, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        signs = self.ball.direction((noise - 0.5).sign())
        x_adv = region.project(x + self.noise * self.ball.eps * signs)
        if u.steps:
            z = net.logits(x)
            normed, plain = attack_target(z, y, weight), attack_target(z, y, 0 * weight)
        for k in range(u.steps):  # K = 1: NuAT; K = 2: NuAT2
            has_norm = k % 2 == 0 if u.steps > 1 else int(count) % 2 == 1
            target = normed if has_norm else plain
            x_adv = net.ascent(region, x_adv, target, 1, u.step_size, loss=attack_loss)
        net.backward((x, x_adv), y, loss=nuat_loss(net.loss), given=(weight,))
        net.apply()

    def _weight(self, epoch: int) -> float:
        return self.weight * min(epoch / self.rise, 1.0) if self.rise else self.weight


def attack_target(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """All that the attack needs besides the logits, as one row per image: clean logits, label,
    lambda."""
    return torch.cat([z, y[:, None].to(z.dtype), weight.to(z.dtype).expand(len(z), 1)], 1)


def attack_loss(z_adv: Tensor, target: Tensor) -> Tensor:
    z, y, weight = target[:, :-2], target[:, -2].long(), target[:, -1]
    return ce(z_adv, y) + weight * nuclear(z_adv - z)


@cache  # one function for each loss: an engine compiles every function that it is given
def nuat_loss(clean: Loss) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def loss(z: Tensor, z_adv: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        # the mean over the batch divides the norm by the batch size
        return clean(z, y) + weight * nuclear(z - z_adv)

    return loss
