"""Exponential moving average of the weights: the model that is validated, kept and shipped when a
recipe asks for it."""

import copy

import torch
from torch import nn


class EMA:
    """`model` averaged over training steps: w_avg <- d w_avg + (1 - d) w, with d = min(decay, (1 +
    t) / (10 + t)).

    The bound lets the average follow quickly while it is young. BatchNorm's running statistics are
    averaged alike; integers are copied.
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
        whole = [
            (a, c) for a, c in zip(averaged, current, strict=True) if not a.is_floating_point()
        ]
        if whole:
            torch._foreach_copy_([a for a, _ in whole], [c for _, c in whole])


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]
