"""Attacks leave the model unchanged: parameters, gradients, buffers, modes and flags."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from amata.errors import InputError
from amata.losses import Loss, as_logits


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Disable weight gradients. An input gradient then costs a third less and writes no `.grad`."""
    flags = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in flags:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode with frozen weights and logits as output; on exit, modes, buffers, gradients, flags
    and outputs are restored."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    logits = model.register_forward_hook(lambda module, args, output: as_logits(output))
    model.eval()
    try:
        with frozen(model), torch.enable_grad():
            yield
    finally:
        logits.remove()
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                buffer.copy_(value)
                module._buffers[name] = buffer


def input_grad(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The gradient of the summed loss at x. Each sample's gradient is independent of the batch
    size."""
    # autograd cannot record tensors that were made in inference mode
    x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
    y = y.clone() if y.is_inference() else y
    if not callable(loss):
        raise InputError(f"loss = {loss!r} must be a function (logits, labels) -> losses")
    z = model(x)
    value = loss(z, y)
    if not isinstance(value, Tensor):
        raise InputError(f"the loss must return a tensor, not {type(value).__name__}")
    try:
        (g,) = torch.autograd.grad(value.sum(), x)
    except RuntimeError:
        if ignores(z, x):
            raise InputError(NO_GRADIENT) from None
        raise
    return g


NO_GRADIENT = (
    "the model's output has no gradient; remove no_grad(), detach() and numpy() from its forward()"
)


def ignores(z: Tensor, x: Tensor) -> bool:
    """Whether autograd finds no way from outputs to images."""
    return not z.requires_grad or (
        torch.autograd.grad(z.sum(), x, retain_graph=True, allow_unused=True)[0] is None
    )
