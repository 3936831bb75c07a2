"""The arguments of the Hopper convolution kernel (`engine/halo.py`): tiles, layouts, launch."""

from typing import Any, NamedTuple

import torch
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


class Kernel(NamedTuple):
    """What a kernel is compiled for. The number of images is an argument of the kernel; here it
    only decides about the tile."""

    kind: int
    shape: tuple[int, ...]
    """Of the input, (N, C, H, W)."""
    mask: torch.dtype
    scale: torch.dtype | None
    shift: torch.dtype | None

    @classmethod
    def of(
        cls, kind: int, x: Tensor, mask: torch.dtype, scale: Tensor | None, shift: Tensor | None
    ) -> "Kernel":
        dtypes = [None if t is None else t.dtype for t in (scale, shift)]
        return cls(kind, tuple(x.shape), mask, *dtypes)

    def tile(self) -> Tile:
        x = torch.empty(self.shape, dtype=torch.bfloat16, device="meta")
        tile = tile_for(x, self.shape[1])
        assert tile is not None
        return tile

    def name(self) -> str:
        """The same for kernels that are equal for Triton."""
        return repr((self.kind, self.shape[1:], self.tile(), self.mask, self.scale, self.shift))

    def compile(self) -> None:
        """Compile it for the current device; Triton keeps it on disk."""
        from triton.runtime.jit import MockTensor

        from amata.engine.halo import halo_kernel

        n, channels, height, width = self.shape
        value, bits, *others = (
            MockTensor(dtype or torch.bfloat16)
            for dtype in (torch.bfloat16, self.mask, self.scale, self.shift)
        )
        arguments, options = arguments_for(
            self.kind,
            (n, height, width, channels),
            self.tile(),
            value,
            value,
            value,
            value,
            value,
            bits,
            *others,
        )
        halo_kernel.warmup(*arguments, grid=(1,), **options)


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
