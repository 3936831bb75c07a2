"""What `apply` does, as one CUDA graph: the optimiser's step, the EMA update, zeroing the gradients
and the refresh of the attack copy."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from amata.engine.ema import EMA
from amata.engine.graphs import Graph


def is_graphable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step can be recorded with a learning rate that is a device scalar: torch's fused
    optimisers, and those that say so in `takes_lr_tensor`."""
    fused = type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW) and all(
        group["fused"] for group in optimizer.param_groups
    )
    return (fused or getattr(optimizer, "takes_lr_tensor", False)) and not any(
        isinstance(group["lr"], Tensor) for group in optimizer.param_groups
    )


class ApplyGraph:
    """The learning rates and the EMA's weight are device scalars, written when they change. All
    else is constant; the optimiser must have its state already, in the tensors of later steps."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        ema: EMA | None,
        refresh: Callable[[], object] | None,
        pool: Any,
    ) -> None:
        self.groups = optimizer.param_groups
        self.ema = ema
        weights: list[Tensor] = [p for group in self.groups for p in group["params"]]
        grads = [p.grad for p in weights if p.grad is not None]
        self.lrs = torch.zeros(len(self.groups), device=weights[0].device)
        self.ema_weight = torch.zeros((), device=weights[0].device)
        self.written: tuple[list[float], float] = ([], -1.0)

        def work() -> None:
            _step(optimizer, self.lrs)
            torch._foreach_zero_(grads)
            if ema is not None:
                ema.average(self.ema_weight)
            if refresh is not None:
                refresh()

        state = [t for entries in optimizer.state.values() for t in entries.values() if _on_gpu(t)]
        averaged = [*ema.model.parameters(), *ema.model.buffers()] if ema is not None else []
        self.graph = Graph(work, (), mutated=[*weights, *grads, *state, *averaged], pool=pool)

    def __call__(self) -> None:
        lrs = [float(group["lr"]) for group in self.groups]
        ema_weight = self.ema.advance() if self.ema is not None else 0.0
        old_lrs, old_ema_weight = self.written
        if lrs != old_lrs:
            if len(set(lrs)) == 1:
                self.lrs.fill_(lrs[0])
            else:
                for scalar, lr in zip(self.lrs, lrs, strict=True):
                    scalar.fill_(lr)
        if ema_weight != old_ema_weight:
            self.ema_weight.fill_(ema_weight)
        self.written = lrs, ema_weight
        self.graph.replay()


def _on_gpu(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _step(optimizer: torch.optim.Optimizer, lrs: Tensor) -> None:
    """A step with learning rates on the device."""
    before = [dict(group) for group in optimizer.param_groups]
    try:
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
            if "capturable" in group:
                group["capturable"] = True
        optimizer.step()
    finally:
        for group, old in zip(optimizer.param_groups, before, strict=True):
            group.update(old)
