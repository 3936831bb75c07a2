"""Exponential moving average (EMA) of the weights."""

import copy

import torch
from torch import nn


class EMA:
    """`model` is the average over training steps: w_ema <- d w_ema + (1 - d) w, with
    d = min(decay, (1 + t) / (10 + t)).

    The bound makes the average follow quickly in the first steps. BatchNorm's running statistics
    are averaged too; integer buffers are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.source = model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        averaged, current = _tensors(self.model), _tensors(self.source)
        floats = [(a, c) for a, c in zip(averaged, current, strict=True) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in floats], [c for _, c in floats], 1 - decay)
        integers = [
            (a, c) for a, c in zip(averaged, current, strict=True) if not a.is_floating_point()
        ]
        if integers:
            torch._foreach_copy_([a for a, _ in integers], [c for _, c in integers])


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]
