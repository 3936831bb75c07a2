"""Ascent steps recorded as CUDA graphs."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from amata.engine.graphs import Graph
from amata.threat import Region


def ascent_step(region: Region, x: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
    """One step up the gradient, projected to the feasible set."""
    return region.project(region.ascend(x, g, alpha))


STEPS_PER_GRAPH = 5
"""Ascent steps recorded as one graph: a GPU idles for a moment between two replays."""


class AscentGraph:
    """Projected ascent on images that are updated in place. The feasible set is copied in once per
    batch."""

    def __init__(
        self,
        input_grad: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        step: Callable[..., Tensor],
        region: Any,
        x: Tensor,
        y: Tensor,
        alpha: Tensor,
        mutated: list[Tensor],
        pool: Any,
    ) -> None:
        self.names = [f.name for f in fields(region) if isinstance(getattr(region, f.name), Tensor)]
        self.fixed = replace(region, **{name: getattr(region, name).clone() for name in self.names})

        def one_step(x: Tensor, y: Tensor) -> Tensor:
            g, _ = input_grad(x, y)
            return x.copy_(step(self.fixed, x, g, alpha))

        def several_steps(x: Tensor, y: Tensor) -> Tensor:
            for _ in range(STEPS_PER_GRAPH):
                one_step(x, y)
            return x

        self.one = Graph(one_step, (x, y), mutated=mutated, pool=pool)
        self.several = Graph(
            several_steps, self.one.inputs, mutated=mutated, pool=pool, copy_inputs=False
        )

    def __call__(self, region: Any, x: Tensor, y: Tensor, steps: int) -> Tensor:
        own_x, own_y = self.one.inputs
        with torch.no_grad():
            for name in self.names:
                getattr(self.fixed, name).copy_(getattr(region, name))
            own_x.copy_(x)
            own_y.copy_(y)
        for _ in range(steps // STEPS_PER_GRAPH):
            self.several.replay()
        for _ in range(steps % STEPS_PER_GRAPH):
            self.one.replay()
        return own_x
