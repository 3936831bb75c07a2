"""3x3 convolutions with the pointwise work around them as one kernel: BatchNorm's scale and shift,
ReLU, the residual sum, and in the backward pass ReLU's mask, kept as bits.

Hopper GPUs have a kernel for it (`engine/halo.py`). On a CPU the operations compute the same with
PyTorch's, for tests.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from amata.engine import kernels_ahead
from amata.engine.halo_launch import Kernel, arguments_for, launch, tile_for


@torch.library.custom_op("amata::fused_conv", mutates_args=())
def fused_conv(
    x: Tensor,
    weight: Tensor,
    shift: Tensor,
    scale: Tensor | None,
    residual: Tensor | None,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """a = relu(conv(x) + shift) or, with a residual, y = conv(x) + residual and
    a = relu(scale y + shift). Returns a, the bits of a > 0, and y if it is kept."""
    y, a, bits = _outputs(x, keep_sum)
    if x.is_cuda:
        kind = 1 if residual is None else 2 if keep_sum else 3
        _launch(kind, x, weight, y=y, a=a, mask=bits, residual=residual, scale=scale, shift=shift)
        return a, bits, y
    out = F.conv2d(x, weight, padding=1)
    if residual is not None and scale is not None:
        out = out + residual
        if keep_sum:
            y.copy_(out)
        out = out * scale.view(-1, 1, 1)
    a.copy_(F.relu(out + shift.view(-1, 1, 1)))
    bits.copy_(pack(a))
    return a, bits, y


@fused_conv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    shift: Tensor,
    scale: Tensor | None,
    residual: Tensor | None,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    kind = 1 if residual is None else 2 if keep_sum else 3
    _request(kind, x, torch.uint8, scale, shift)
    y, a, bits = _outputs(x, keep_sum)
    return a, bits, y


def _outputs(x: Tensor, keep_sum: bool) -> tuple[Tensor, Tensor, Tensor]:
    n, channels, height, width = x.shape
    a = torch.empty_like(x, memory_format=torch.channels_last)
    bits = x.new_empty((n, height, width, channels // 8), dtype=torch.uint8)
    y = torch.empty_like(a) if keep_sum else x.new_empty(0)
    return y, a, bits


@torch.library.custom_op("amata::fused_conv_gradient", mutates_args=())
def fused_conv_gradient(
    g: Tensor, weight: Tensor, mask: Tensor, scale: Tensor | None, residual: Tensor | None
) -> Tensor:
    """The input gradient where the mask is positive; with a residual, times scale, plus the
    residual. The mask is bits or an activation."""
    if not g.is_cuda:
        return _plain_gradient(g, weight, mask, scale, residual)
    y = torch.empty_like(g, memory_format=torch.channels_last)
    kind = 4 if residual is None else 5
    _launch(kind, g, weight, y=y, a=None, mask=mask, residual=residual, scale=scale, shift=None)
    return y


@fused_conv_gradient.register_fake
def _(
    g: Tensor, weight: Tensor, mask: Tensor, scale: Tensor | None, residual: Tensor | None
) -> Tensor:
    _request(4 if residual is None else 5, g, mask.dtype, scale, None)
    return torch.empty_like(g, memory_format=torch.channels_last)


def _plain_gradient(
    g: Tensor, weight: Tensor, mask: Tensor, scale: Tensor | None, residual: Tensor | None
) -> Tensor:
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    out = torch.ops.aten.convolution_backward(g, g, weight, None, *options)[0]
    out = torch.where(unpack(mask) if mask.dtype == torch.uint8 else mask > 0, out, 0)
    if scale is not None and residual is not None:
        out = out * scale.view(-1, 1, 1) + residual
    return out.to(g.dtype).contiguous(memory_format=torch.channels_last)


def pack(a: Tensor) -> Tensor:
    """The bits of a > 0 as (N, H, W, C / 8), the first channel in the lowest bit."""
    bits = (a.permute(0, 2, 3, 1) > 0).unflatten(3, (-1, 8))
    return (bits << torch.arange(8, device=a.device)).sum(4).to(torch.uint8)


def unpack(bits: Tensor) -> Tensor:
    bits = bits.unsqueeze(4) >> torch.arange(8, device=bits.device) & 1
    return bits.flatten(3).permute(0, 3, 1, 2) > 0


def _request(
    kind: int, x: Tensor, mask: torch.dtype, scale: Tensor | None, shift: Tensor | None
) -> None:
    """Have a kernel compiled by another process. torch.compile calls this while it traces the
    network, so that all kernels compile in parallel and beside its own work."""
    if x.device.type == "cuda" and all(isinstance(size, int) for size in x.shape):
        kernels_ahead.request(Kernel.of(kind, x, mask, scale, shift), x.device)


def _launch(
    kind: int,
    x: Tensor,
    weight: Tensor,
    *,
    y: Tensor | None,
    a: Tensor | None,
    mask: Tensor,
    residual: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
) -> None:
    tile = tile_for(x, len(weight))
    assert tile is not None
    kernels_ahead.wait(Kernel.of(kind, x, mask.dtype, scale, shift))
    x, weight = _nhwc(x), _nhwc(weight)
    mask = mask if mask.dtype == torch.uint8 else _nhwc(mask)
    residual = None if residual is None else _nhwc(residual)
    y, a, residual, scale, shift = (x if t is None else t for t in (y, a, residual, scale, shift))
    launch(*arguments_for(kind, x.shape, tile, x, weight, y, a, residual, mask, scale, shift))


def _nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
