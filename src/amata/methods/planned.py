"""What a method's step costs under a control, counted without a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import Loss, ce
from amata.methods.contract import Method
from amata.schedules import Control

IMAGES = 2
"""In the batch that is counted on."""


class Planned(NamedTuple):
    """Gradient evaluations per image of one visit."""

    evals: float
    exact: bool
    """False if samples may stop early: then `evals` is the most."""


def planned_evals(method: Method, u: Control[float], epoch: int = 0) -> Planned:
    """The gradient evaluations per image of the method's step under u in an epoch (from 0): of a
    fractional K, the mean over its batches, which an epoch of few batches rounds. Training spends
    exactly these; where samples stop early, at most these."""
    counted = [(share, _count(method, part, epoch)) for share, part in u.parts()]
    return Planned(
        sum(share * planned.evals for share, planned in counted),
        all(planned.exact for _, planned in counted),
    )


def _count(method: Method, u: Control, epoch: int) -> Planned:
    x = torch.full((IMAGES, 1, 4, 4), 0.5)
    ids, net = torch.arange(IMAGES), _Counter()
    method.step(net, Batch(x, ids * 0, ids, IMAGES, epoch), u, torch.Generator(), {})
    return Planned(net.evals / IMAGES, net.exact)


class _Counter:
    """The engine's verbs without a network: they count, and return zeros. Nothing stops early."""

    def __init__(self) -> None:
        self.evals, self.exact = 0, True
        self.loss: Loss = ce
        self.passes = 1

    def logits(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), 2)

    def input_grad(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        self.evals += len(x)
        return torch.zeros_like(x)

    def ascent(
        self, region: Any, x: Tensor, y: Tensor, steps: int, step_size: float, **_: Any
    ) -> Tensor:
        self.evals += steps * len(x)
        return x

    def ascent_while(
        self,
        ball: Any,
        x: Tensor,
        start: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        **_: Any,
    ) -> Tensor:
        self.evals += max(steps, 0) * len(x)
        # every sample takes the first step's gradient; whether more follow, the data decide
        self.exact = self.exact and steps <= 1
        return start

    def backward(
        self, x: Tensor | tuple[Tensor, ...], y: Tensor, *, wrt_input: bool = False, **_: Any
    ) -> Tensor | None:
        inputs = x if isinstance(x, tuple) else (x,)
        self.evals += self.passes * sum(map(len, inputs))
        return torch.zeros_like(inputs[0]) if wrt_input else None

    def apply(self) -> None:
        pass

    @contextmanager
    def perturbed(self, gamma: float) -> Iterator[None]:
        self.passes = 2
        yield
        self.passes = 1

    def costate(self, x: Tensor, y: Tensor, *, first: bool, scale: float = 1.0) -> Tensor:
        return self.input_grad(x, y)

    def first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def first_ascent(
        self, region: Any, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        return x

    def first_backward(self, x: Tensor, p: Tensor) -> None:
        pass
