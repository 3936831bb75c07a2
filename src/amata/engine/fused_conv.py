"""3x3 convolutions with the pointwise work around them as one kernel: BatchNorm's scale and shift,
ReLU, the residual sum, and in the backward pass ReLU's mask, kept as bits.

Hopper GPUs have a kernel for it (`engine/halo.py`). On a CPU the operations compute the same with
PyTorch's, for tests.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion

CHANNELS = (64, 128, 256, 512)
SHARED_MEMORY = 226 * 1024
"""Bytes of a multiprocessor that a kernel may use, less its barriers."""


class Tile(NamedTuple):
    """Pixels and output channels of a tile, and the slots of the rings of inputs and weights."""

    pixels: int
    channels: int
    inputs: int
    weights: int
    halo: bool = True


def available(device: torch.device) -> bool:
    """Whether the kernels run on this device: they need Hopper and Triton 3.6."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        import triton
    except ImportError:
        return False
    return TorchVersion(triton.__version__) >= TorchVersion("3.6")


def tile_for(x: Tensor, channels: int) -> Tile | None:
    """The tile for a convolution of this input that keeps its channels, or None if cuDNN's is
    faster or the shape does not fit. Chosen by measurement (`evidence/conv_kernels.py`)."""
    n, channels_in, height, width = x.shape
    if channels_in != channels or (x.is_cuda and x.dtype != torch.bfloat16):
        return None
    if channels == 64:
        tile = Tile(128, 64, 2, 9)
    elif channels == 128:
        tile = Tile(128, 64, 3, 8)
    elif channels == 256:
        tile = Tile(64, 128, 4, 6)
    elif channels == 512 and n * height * width <= 4096:
        tile = Tile(64, 64, 6, 8, halo=False)
    else:
        return None
    if tile.halo:
        fits = width >= 8 and tile.pixels % width == 0 and (height * width) % tile.pixels == 0
        rows = tile.pixels + 2 * width
    else:
        fits, rows = tile.pixels % (height * width) == 0, tile.pixels
    slots = 2 * tile.inputs * rows + tile.weights * tile.channels
    shared = slots * 128 + 2 * tile.pixels * tile.channels
    return tile if fits and shared <= SHARED_MEMORY else None


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
    _compile_ahead(kind, x, torch.uint8, scale, shift)
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
    _compile_ahead(4 if residual is None else 5, g, mask.dtype, scale, None)
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


_pool = ThreadPoolExecutor(8, "compile")
_compiling: dict[tuple[object, ...], Future[None]] = {}


def _compile_ahead(
    kind: int, x: Tensor, mask: torch.dtype, scale: Tensor | None, shift: Tensor | None
) -> Future[None] | None:
    """Start compiling a kernel in the background, once. torch.compile asks for it while it traces
    the network, so that all kernels compile in parallel and beside its own work."""
    if x.device.type != "cuda" or not all(isinstance(size, int) for size in x.shape):
        return None
    dtypes = [None if t is None else t.dtype for t in (scale, shift)]
    key = (kind, x.device, *x.shape, mask, *dtypes)
    if key not in _compiling:
        _compiling[key] = _pool.submit(_compile, kind, x.shape, x.device, mask, *dtypes)
    return _compiling[key]


def _compile(
    kind: int,
    shape: tuple[int, ...],
    device: torch.device,
    mask: torch.dtype,
    scale: torch.dtype | None,
    shift: torch.dtype | None,
) -> None:
    from triton.runtime.jit import MockTensor

    from amata.engine.halo import halo_kernel

    n, channels, height, width = shape
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    tile = tile_for(x, channels)
    assert tile is not None
    value, bits, *others = (
        MockTensor(dtype)
        for dtype in (x.dtype, mask, *(dtype or x.dtype for dtype in (scale, shift)))
    )
    arguments, options = arguments_for(
        kind, (n, height, width, channels), tile, value, value, value, value, value, bits, *others
    )
    with torch.cuda.device(device):
        halo_kernel.warmup(*arguments, grid=(1,), **options)


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
    compiled = _compile_ahead(kind, x, mask.dtype, scale, shift)
    if compiled is not None:
        compiled.result()
    x, weight = _nhwc(x), _nhwc(weight)
    mask = mask if mask.dtype == torch.uint8 else _nhwc(mask)
    residual = None if residual is None else _nhwc(residual)
    y, a, residual, scale, shift = (x if t is None else t for t in (y, a, residual, scale, shift))
    launch(*arguments_for(kind, x.shape, tile, x, weight, y, a, residual, mask, scale, shift))


def launch(arguments: list[Any], options: dict[str, Any]) -> None:
    """Start the kernel on as many multiprocessors as there are tiles for."""
    from amata.engine.halo import halo_kernel

    processors = torch.cuda.get_device_properties(arguments[2].device).multi_processor_count
    tiles = arguments[-1] * (options["CO"] // options["BN"])
    halo_kernel[(min(processors, tiles),)](*arguments, **options)


def arguments_for(
    kind: int,
    shape: tuple[int, ...],
    tile: Tile,
    x: Any,
    weight: Any,
    y: Any,
    a: Any,
    residual: Any,
    mask: Any,
    scale: Any,
    shift: Any,
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the kernel and its compile-time constants, for an input of this shape
    (N, H, W, C)."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    flip = kind >= 4
    n, height, width, channels = shape
    rows = min(height, tile.pixels // width)
    box = [1, 2, width, 64] if tile.halo else [tile.pixels // (rows * width), rows, width, 64]
    strides = [height * width * channels, width * channels, channels, 1]
    block = [64, tile.channels] if flip else [tile.channels, 64]
    layouts = [
        gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)
        for rank in (4, 2)
    ]
    pixels = n * height * width
    arguments = [
        TensorDescriptor(x, [*shape], strides, box, layouts[0]),
        TensorDescriptor(weight, [channels, 9 * channels], [9 * channels, 1], block, layouts[1]),
        y,
        a,
        residual,
        mask,
        scale,
        shift,
        pixels,
        -(-pixels // (2 * tile.pixels)),
    ]
    options = {
        "C": channels, "CO": channels, "H": height, "W": width, "BM": tile.pixels,
        "BN": tile.channels, "HALO": tile.halo, "RESIDENT": channels == 64, "NA": tile.inputs,
        "NB": tile.weights, "KIND": kind, "FLIP": flip, "BITS": mask.dtype == torch.uint8,
        "num_warps": 4, "maxnreg": 168,
    }  # fmt: skip
    return arguments, options


def _nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()
