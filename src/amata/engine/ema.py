"""Exponential moving average (EMA) of the weights."""

import copy

import torch
from torch import Tensor, nn


class EMA:
    """`model` is the average over training steps: w_ema <- d w_ema + (1 - d) w, with
    d = min(decay, (1 + t) / (1 + t + warmup)).

    The bound makes the average follow quickly in the first steps: it spans about the last
    1 / warmup of the steps so far, until the decay is reached. With a warmup of 1 it is the mean of
    all weights. BatchNorm's running statistics are averaged too; integer buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float, warmup: float = 9.0) -> None:
        self.decay, self.warmup = decay, warmup
        self.steps = 0
        self.source = model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self) -> None:
        self.average(self.advance())

    def advance(self) -> float:
        """Count a step, and return the weight 1 - d of the current weights in it."""
        decay = min(self.decay, (1 + self.steps) / (1 + self.steps + self.warmup))
        self.steps += 1
        return 1 - decay

    @torch.no_grad()
    def average(self, weight: float | Tensor) -> None:
        """w_ema <- w_ema + weight (w - w_ema). On a GPU the weight may be a device scalar."""
        pairs = list(zip(_tensors(self.model), _tensors(self.source), strict=True))
        integers = [pair for pair in pairs if not pair[0].is_floating_point()]
        if integers:
            torch._foreach_copy_([a for a, _ in integers], [c for _, c in integers])
        for dtype in {a.dtype for a, _ in pairs if a.is_floating_point()}:
            averaged = [a for a, _ in pairs if a.dtype == dtype]
            current = [c for a, c in pairs if a.dtype == dtype]
            if isinstance(weight, Tensor):
                descend(averaged, current, lr=weight, decay=1.0, maximize=True)
            else:
                torch._foreach_lerp_(averaged, current, weight)


def descend(
    weights: list[Tensor], updates: list[Tensor], *, lr: Tensor, decay: float, maximize: bool
) -> None:
    """w <- w - lr (u + decay w), or with `maximize` w - lr (decay w - u), in one pass over memory.

    The learning rate is a scalar on the device. torch's foreach functions take none; its fused SGD
    does.
    """
    torch._fused_sgd_(
        weights,
        updates,
        [],
        weight_decay=decay,
        momentum=0.0,
        lr=lr,
        dampening=0.0,
        nesterov=False,
        maximize=maximize,
        is_first_step=False,
    )


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]
