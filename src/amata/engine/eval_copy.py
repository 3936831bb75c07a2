"""Fast evaluation: the same logits and input gradients from a frozen, compiled copy with folded
BatchNorms."""

import torch
from torch import Tensor, nn

from amata.engine.attack_copy import AttackCopy
from amata.engine.compiler import has_compiler
from amata.losses import as_logits

MIN_COMPILED_BATCH = 16
"""Smaller batches, such as an attack's first check of a model, run eagerly."""


class EvalCopy(nn.Module):
    """A copy of `model` with its present weights, in its own precision, compiled for any batch
    size."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        first = next(model.parameters())
        self.copy = AttackCopy(model, train_mode=False, dtype=first.dtype).model
        if first.is_cuda:
            self.copy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = torch.compile(self.copy) if has_compiler() else self.copy
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < MIN_COMPILED_BATCH:
            return as_logits(self.copy(x))
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return as_logits(self.compiled(x))

    def warm_up(self, x: Tensor) -> None:
        """Compile the forward and backward pass now, so that no attack's time includes it."""
        with torch.no_grad():
            self(x)
        x = x.detach().clone().requires_grad_()
        torch.autograd.grad(self(x).sum(), x)


def compiled_for_eval(model: nn.Module) -> nn.Module:
    """An `EvalCopy` on a GPU; the model itself on a CPU, where eager is as fast."""
    p = next(model.parameters(), None)
    return EvalCopy(model) if p is not None and p.is_cuda else model
