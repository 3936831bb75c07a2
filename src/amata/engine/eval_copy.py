"""Fast evaluation: the logits and input gradients of a frozen, compiled copy with folded
BatchNorms.

On a GPU the copy may compute its convolutions in fp16. That has the precision of TF32 at almost
twice the speed, but a smaller range. Linear layers stay in fp32, so logits are not rounded to fp16.
"""

import copy
from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from amata.engine.attack_copy import AttackCopy
from amata.engine.compiler import has_compiler
from amata.losses import as_logits

MIN_COMPILED_BATCH = 16
"""Smaller batches, such as an attack's first check of a model, run eagerly."""
GRADIENT_SIZE = 256.0
"""Each image's largest gradient by a logit, while it passes through fp16."""
TOLERANCE = 0.05
"""Of fp16's logits, as a share of the range of an image's logits."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class EvalCopy(nn.Module):
    """A copy of `model` with its present weights, compiled for any batch size: in the model's
    precision, or with convolutions in fp16."""

    def __init__(self, model: nn.Module, *, fp16: bool = False) -> None:
        super().__init__()
        first = next(model.parameters())
        # The copy reads its weights from here. In a tuple it is no submodule.
        self._source = (copy.deepcopy(model).requires_grad_(False),)
        self._weights = AttackCopy(self._source[0], train_mode=False, dtype=first.dtype)
        self.copy = self._weights.model
        self.fp16 = fp16
        if fp16:
            _use_fp16(self.copy)
            self._weights.refresh()
        if first.is_cuda:
            self.copy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled: Callable[[nn.Module, Tensor], Tensor] = (
            compiled_forward(repr(self.copy)) if has_compiler() else _forward
        )
        self.infers = False
        """Whether passes without gradients have compiled code of their own: a little faster, but
        twice the code to compile."""
        self.out_of_range = torch.zeros((), dtype=torch.bool, device=first.device)
        """Whether fp16 gave values that are not finite, or wrong logits. On the device."""
        self.eval()

    def refresh(self, model: nn.Module) -> None:
        """Copy the weights of a model with the same layers. Nothing is compiled again."""
        own, new = _tensors(self._source[0]), _tensors(model)
        with torch.no_grad():
            torch._foreach_copy_(list(own.values()), [new[name] for name in own])
        self._weights.refresh()
        self.out_of_range = torch.zeros_like(self.out_of_range)

    def forward(self, x: Tensor) -> Tensor:
        if not self.fp16:
            return self._logits(x)
        if x.requires_grad and torch.is_grad_enabled():
            z: Tensor = _ScaledGradients.apply(x, self)
        else:
            z = self._logits(x).float()
        self._note(z)
        return z

    def _logits(self, x: Tensor) -> Tensor:
        if len(x) < MIN_COMPILED_BATCH:
            return _forward(self.copy, x)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if not (self.infers or torch.is_grad_enabled()):
            with torch.enable_grad():
                return self._logits(x.detach().requires_grad_()).detach()
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return self.compiled(self.copy, x)

    def _note(self, values: Tensor) -> None:
        self.out_of_range = self.out_of_range | ~values.detach().isfinite().all()

    def compare(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Begin again with `out_of_range`: whether the logits of x are far from z, which the model
        computed, in any batch (x, z)."""
        self.out_of_range = torch.zeros_like(self.out_of_range)
        for x, z in batches:
            with torch.no_grad():
                far = (self(x) - z).abs().amax(1) > TOLERANCE * (z.amax(1) - z.amin(1))
            self.out_of_range = self.out_of_range | far.any()

    def warm_up(self, x: Tensor, *, infers: bool = False) -> None:
        """Compile the forward and backward pass now, so that no attack's time includes it. With
        `infers` also a forward pass alone, for attacks that make many of them."""
        self.infers = infers
        if infers:
            with torch.no_grad():
                self(x)
        x = x.detach().clone().requires_grad_()
        torch.autograd.grad(self(x).sum(), x)


class _ScaledGradients(torch.autograd.Function):
    """A copy's logits. Going back, each image's gradient has its own scale in fp16: an image's
    gradient depends on no other image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, net: EvalCopy) -> Tensor:
        ctx.net, ctx.leaf = net, x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.z = net._logits(ctx.leaf)
        z: Tensor = ctx.z.detach().float()
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        size = g.abs().amax(1).clamp_min(torch.finfo(g.dtype).tiny)
        scaled = (g / size[:, None] * GRADIENT_SIZE).to(ctx.z.dtype)
        (g,) = torch.autograd.grad(ctx.z, ctx.leaf, scaled)
        ctx.net._note(g)
        return g * (size / GRADIENT_SIZE).view(-1, *[1] * (g.dim() - 1)), None


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    z: Tensor = as_logits(model(x))
    return z


@cache
def compiled_forward(structure: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """The compiled forward pass of all networks of one structure: Dynamo guards layers and shapes,
    while weights are inputs of the compiled code.

    Each structure has a function of its own, because Dynamo limits the variants per function.
    """
    own = FunctionType(_forward.__code__.replace(), globals())
    compiled: Callable[[nn.Module, Tensor], Tensor] = torch.compile(own)
    return compiled


def _use_fp16(model: nn.Module) -> None:
    """Convolutions in fp16; every layer with a matrix product casts its input to its own dtype."""
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            module.half()
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            module.register_forward_pre_hook(_cast_input)


def _cast_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    weight: Any = module.weight
    return (inputs[0].to(weight.dtype), *inputs[1:])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def suits_fp16(model: nn.Module) -> bool:
    """Whether the model is in fp32 on a GPU and has convolutions."""
    parameters = list(model.parameters())
    return all(p.is_cuda and p.dtype == torch.float32 for p in parameters) and any(
        isinstance(module, CONVOLUTIONS) for module in model.modules()
    )


def compiled_for_eval(model: nn.Module, *, fp16: bool = False) -> nn.Module:
    """An `EvalCopy` on a GPU; the model itself on a CPU, where eager is as fast."""
    p = next(model.parameters(), None)
    return EvalCopy(model, fp16=fp16) if p is not None and p.is_cuda else model
