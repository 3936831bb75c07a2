"""A network to be evaluated, at speed: the same logits and input gradients from a frozen, folded,
compiled copy."""

import torch
from torch import Tensor, nn

from amata.engine.attack_copy import AttackCopy
from amata.engine.compiler import has_compiler

FEW = 16
"""Smaller batches, as when an attack first looks at a model, are not worth compiling for."""


class EvalCopy(nn.Module):
    """What `model` computes now, in its own precision. Batches may have any size: that is left open
    when it is compiled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        first = next(model.parameters())
        self.copy = AttackCopy(model, train_mode=False, dtype=first.dtype).model
        if first.is_cuda:
            self.copy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = torch.compile(self.copy) if has_compiler() else self.copy
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < FEW:
            return self.copy(x)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        out: Tensor = self.compiled(x)
        return out

    def warm_up(self, x: Tensor) -> None:
        """Compile for logits and for input gradients now, so that no attack is charged for it."""
        with torch.no_grad():
            self(x)
        x = x.detach().clone().requires_grad_()
        torch.autograd.grad(self(x).sum(), x)


def compiled_for_eval(model: nn.Module) -> nn.Module:
    """The fast copy on a GPU; elsewhere, where eager is as fast, the model itself."""
    p = next(model.parameters(), None)
    return EvalCopy(model) if p is not None and p.is_cuda else model
