"""Input checks: images, labels and models that an attack cannot handle raise InputError."""

import torch
from torch import Tensor, nn

from amata.errors import InputError


def check_images(x: Tensor, y: Tensor) -> None:
    """Require N images in [0, 1] with N integer labels."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        raise InputError(
            f"images must be a floating-point tensor of shape (N, C, H, W), not {_describe(x)}"
        )
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != (len(x),):
        raise InputError(f"labels must be an int64 tensor of shape ({len(x)},), not {_describe(y)}")
    if len(x) == 0:
        raise InputError("the batch is empty")
    low, high = x.detach().aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise InputError("images contain non-finite values; check the loader and the augmentation")
    if low < 0 or high > 1:
        raise InputError(
            f"image values range over [{low:.3g}, {high:.3g}], outside [0, 1]; scale images to "
            "[0, 1] and put the normalisation inside the model"
        )


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def check_model(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Run the model on the first image and check its logits; returns the number of classes."""
    with torch.no_grad():
        z = forward(model, x[:1])
    check_logits(z, y, n=1)
    return z.shape[1]


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Forward pass; shape errors become InputError."""
    try:
        z: Tensor = model(x)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "memory" in reason or "CUDA error" in reason:  # not caused by the shape of the images
            raise
        raise InputError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}"
        ) from error
    return z


def check_logits(z: Tensor, y: Tensor, n: int | None = None) -> None:
    """Require one row of class scores for each of n images (default: one per label), and labels
    within those classes."""
    n = len(y) if n is None else n
    if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != n:
        kind = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"the model's output must be logits of shape ({n}, classes), not {kind}")
    if y.min() < 0 or y.max() >= z.shape[1]:
        raise InputError(
            f"labels range over [{int(y.min())}, {int(y.max())}], outside the model's "
            f"{z.shape[1]} classes"
        )
