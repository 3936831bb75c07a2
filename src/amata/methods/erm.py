"""Empirical risk minimisation: ordinary training on clean images, the non-robust baseline."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.schedules import Control


@dataclass(frozen=True, kw_only=True)
class ERM(Method):
    chosen_by: ClassVar[Literal["robust", "clean"]] = "clean"
    refuses: ClassVar[tuple[str, ...]] = ("eps",)

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        net.backward(batch.x, batch.y)  # theta <- theta - eta grad l(x, y)
        net.apply()
