"""What every attack promises: it refuses input it cannot attack, and it leaves the model exactly as
it found it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from amata.errors import InputError
from amata.losses import Loss


def check_images(x: Tensor, y: Tensor) -> None:
    """Refuse anything but N images in [0, 1] with N integer labels."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        kind = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"images must be a floating-point tensor of shape (N, C, H, W), not {kind}"
        )
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != (len(x),):
        kind = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"labels must be an int64 tensor of shape ({len(x)},), not {kind}")
    if len(x) == 0:
        raise InputError("the batch is empty")
    low, high = x.detach().aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise InputError("images hold non-finite values; check the loader and the augmentation")
    if low < 0 or high > 1:
        raise InputError(
            f"images lie in [{low:.3g}, {high:.3g}], outside [0, 1]; scale them to [0, 1] and "
            "put the normalisation inside the model"
        )


def check_model(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Refuse what `check_logits` refuses, seen on the first image; returns the number of
    classes."""
    with torch.no_grad():
        z = logits(model, x[:1])
    check_logits(z, y, n=1)
    return z.shape[1]


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """What the model says of images that it sees for the first time: it may be made for others."""
    try:
        z: Tensor = model(x)
    except (RuntimeError, ValueError, AssertionError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        if "memory" in said or "CUDA error" in said:  # no fault of the images
            raise
        raise InputError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {said}"
        ) from error
    return z


def check_logits(z: Tensor, y: Tensor, n: int | None = None) -> None:
    """Refuse a model whose output is not one row of class scores per image (of n images), and
    labels outside those classes."""
    n = len(y) if n is None else n
    if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != n:
        kind = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"the model's output must be logits of shape ({n}, classes), not {kind}")
    if y.min() < 0 or y.max() >= z.shape[1]:
        raise InputError(
            f"labels lie in [{int(y.min())}, {int(y.max())}], outside the model's {z.shape[1]} "
            "classes"
        )


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Parameters take no gradient inside: an input gradient then costs a third less, and no `.grad`
    is written."""
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
    """The model is in eval mode and frozen inside; afterwards modes, buffers, gradients and flags
    are what they were."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    model.eval()
    try:
        with frozen(model), torch.enable_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                buffer.copy_(value)
                module._buffers[name] = buffer


def input_grad(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The gradient of the summed loss at x: each sample's own gradient, whatever the batch size."""
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(loss(model(x), y).sum(), x)
    return g
