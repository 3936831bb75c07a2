"""Ascent steps recorded as CUDA graphs."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from amata.engine.graphs import Graph
from amata.threat import Region


def moved(region: Region, x: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
    """One step up the gradient, back in the feasible set."""
    return region.project(region.ascend(x, g, alpha))


STRIDE = 5
"""Ascent steps that are recorded together: between one replay and the next a GPU waits a little."""


class AscentGraph:
    """Ascent steps on images that stay in their place, within a feasible set that is copied in once
    per batch."""

    def __init__(
        self,
        attack: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        move: Callable[..., Tensor],
        region: Any,
        x: Tensor,
        y: Tensor,
        alpha: Tensor,
        touches: list[Tensor],
        pool: Any,
    ) -> None:
        self.names = [f.name for f in fields(region) if isinstance(getattr(region, f.name), Tensor)]
        self.fixed = replace(region, **{name: getattr(region, name).clone() for name in self.names})

        def step(x: Tensor, y: Tensor) -> Tensor:
            g, _ = attack(x, y)
            return x.copy_(move(self.fixed, x, g, alpha))

        def stride(x: Tensor, y: Tensor) -> Tensor:
            for _ in range(STRIDE):
                step(x, y)
            return x

        self.one = Graph(step, (x, y), touches=touches, pool=pool)
        self.many = Graph(stride, self.one.inputs, touches=touches, pool=pool, own=True)

    def __call__(self, region: Any, x: Tensor, y: Tensor, steps: int) -> Tensor:
        for name in self.names:
            getattr(self.fixed, name).copy_(getattr(region, name))
        own_x, own_y = self.one.inputs
        own_x.copy_(x)
        own_y.copy_(y)
        for _ in range(steps // STRIDE):
            self.many.replay()
        for _ in range(steps % STRIDE):
            self.one.replay()
        return own_x
