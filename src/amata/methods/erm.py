"""Empirical risk minimisation: ordinary training on clean images, the baseline that is not
robust."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Net
from amata.schedules import Control
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class ERM:
    ball: Ball  # unused: clean training knows no adversary
    chosen_by: ClassVar[str] = "clean"

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        net.backward(batch.x, batch.y)  # theta <- theta - eta grad l(x, y)
        net.apply()
