"""Input checks: images, labels and models that an attack cannot handle raise InputError."""

from typing import Any

import torch
from torch import Tensor, nn

from amata.errors import InputError
from amata.losses import as_logits


def check_kinds(x: Tensor, y: Tensor) -> None:
    """Require a floating-point tensor of N images and N integer labels, whatever their values."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        raise InputError(
            f"images must be a floating-point tensor of shape (N, C, H, W), not {_describe(x)}"
        )
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != (len(x),):
        way = "; use y.long()" if isinstance(y, Tensor) and y.shape == (len(x),) else ""
        raise InputError(
            f"labels must be an int64 tensor of shape ({len(x)},), not {_describe(y)}{way}"
        )
    if x.is_meta or y.is_meta:
        raise InputError("images and labels are on the meta device, which holds no values")
    if len(x) == 0:
        raise InputError("the batch is empty")
    if x.numel() == 0:
        raise InputError(f"images of shape {tuple(x.shape[1:])} have no pixels")


def check_images(x: Tensor, y: Tensor) -> None:
    """Require N images in [0, 1] with N integer labels."""
    check_kinds(x, y)
    low, high = x.detach().aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise InputError("images contain non-finite values; check the loader and the augmentation")
    if low < 0 or high > 1:
        raise InputError(
            f"image values range over [{low:.3g}, {high:.3g}], outside [0, 1]; scale images to "
            "[0, 1] and put the normalisation inside the model"
        )


def check_start(start: Any, x: Tensor) -> None:
    """Require a finite starting point of the shape of the images."""
    if not isinstance(start, Tensor) or start.shape != x.shape:
        raise InputError(
            f"start must be a tensor of shape {tuple(x.shape)}, not {_describe(start)}"
        )
    if not start.isfinite().all():
        raise InputError("start contains non-finite values")


def check_module(model: Any) -> None:
    """Require a module that gradients can flow through."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise InputError(f"model = {model.__name__} is a class; make one: {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        function = callable(model) and not isinstance(model, type)
        wrap = "; call it in the forward() of a Module" if function else ""
        raise InputError(f"model must be an nn.Module, not {_describe(model)}{wrap}")
    tensors = (*model.parameters(), *model.buffers())
    if any(t.is_meta for t in tensors):
        raise InputError("the model is on the meta device, without weights; build it on a real one")
    if any(t.is_inference() for t in tensors):
        raise InputError(
            "the model was made in torch.inference_mode() and can have no gradients; build it "
            "outside, or copy it there with copy.deepcopy(model)"
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
    """Forward pass; shape errors become InputError. A model that changes its input is refused: it
    would change the data, or the start of the next attack step."""
    own = x.clone()
    version = None if own.is_inference() else own._version
    try:
        z: Tensor = as_logits(model(own))
    except TypeError as error:
        if "forward() " not in str(error):  # a mistake inside the model
            raise
        raise InputError(
            f"the model must take one batch of images, as in model(x): {error}; wrap it in a "
            "module whose forward(self, x) calls it"
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "memory" in reason or "CUDA error" in reason:  # not caused by the shape of the images
            raise
        own_type = next((p.dtype for p in model.parameters() if p.is_floating_point()), x.dtype)
        if own_type != x.dtype:
            way = "model.float()" if x.dtype == torch.float32 else "x.float()"
            raise InputError(
                f"the images are {x.dtype} and the model's weights {own_type}: take {way}"
            ) from error
        raise InputError(
            f"the model cannot take images of shape {tuple(x.shape[1:])}: {reason}"
            f"{_size_hint(model, x)}"
        ) from error
    if version is not None and own._version != version:
        raise InputError(
            "the model changes its input images in place; set inplace=False in its first layer, or "
            "start its forward() with x = x.clone()"
        )
    return z


def _size_hint(model: nn.Module, x: Tensor) -> str:
    size = getattr(model, "image_size", None)
    if not isinstance(size, int) or tuple(x.shape[2:]) == (size, size):
        return ""
    return f"; it takes images of {size} x {size} pixels: resize them, or choose another network"


def check_logits(z: Tensor, y: Tensor, n: int | None = None, what: str = "") -> None:
    """Require one row of class scores for each of n images (default: one per label), and labels
    within those classes. `what` says which labels they are."""
    n = len(y) if n is None else n
    if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != n:
        kind = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        way = "; return the logits alone" if isinstance(z, tuple | list | dict) else ""
        raise InputError(
            f"for {n} images the model's output must be logits of shape ({n}, classes), not "
            f"{kind}{way}"
        )
    check_labels(y, z.shape[1], what)


def are_probabilities(z: Tensor) -> bool:
    """Whether the outputs went through a softmax, which hides large gradients from attacks."""
    ones = torch.ones(len(z), dtype=z.dtype, device=z.device)
    return z.shape[1] > 1 and bool((z >= 0).all()) and torch.allclose(z.sum(1), ones, atol=1e-3)


def check_labels(y: Tensor, classes: int, what: str = "") -> None:
    if y.min() < 0 or y.max() >= classes:
        low, high = int(y.min()), int(y.max())
        if low == 1 and high == classes:
            hint = "labels start at 0: subtract 1"
        elif low < 0:
            hint = "labels are 0, 1, ...: remove images without a label"
        else:
            hint = f"the model needs at least {high + 1} outputs"
        raise InputError(
            f"{what}labels range over [{low}, {high}], outside the model's {classes} "
            f"class{'es' * (classes != 1)}; {hint}"
        )
