"""No attack: the accuracy on the images themselves."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from amata.attacks.base import Attack
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class Clean(Attack):
    pattern: ClassVar[str] = "clean"
    examples: ClassVar[tuple[str, ...]] = ("clean",)
    perturbs: ClassVar[bool] = False

    def params(self, ball: Ball) -> dict[str, Any]:
        return {}

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return x
