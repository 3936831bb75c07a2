"""Tensor-core-friendly layers, for networks that only compute input gradients.

Each replaces a layer of the network and computes the same: a convolution of few or odd channels as
a matrix product over windows, a linear layer or convolution zero-padded to multiples of eight, and
a convolution with bias and ReLU as one kernel.
"""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNMENT = 8
"""Tensor cores want bf16 sizes in multiples of eight."""


def aligned(n: int) -> int:
    """n, rounded up to a multiple of eight."""
    return math.ceil(n / ALIGNMENT) * ALIGNMENT


class ReplacementLayer(nn.Module):
    """A layer that replaces another. `views` are views of its storage with the names and shapes of
    the original's parameters: writing to them sets its weights.

    A network may also read `weight` and `bias` of a layer, to use them in a function of its own.
    """

    views: dict[str, Tensor]

    @property
    def weight(self) -> Tensor:
        return self.views["weight"]

    @property
    def bias(self) -> Tensor | None:
        return self.views.get("bias")


class WindowConv2d(ReplacementLayer):
    """A convolution of stride 1 as one matrix product: the flattened window of each pixel times the
    weights."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.kernel, self.padding = (
            (conv.kernel_size[0], conv.kernel_size[1]),
            (int(conv.padding[0]), int(conv.padding[1])),
        )
        self.channels_in, self.channels = conv.in_channels, conv.out_channels
        flat = self.channels_in * self.kernel[0] * self.kernel[1]
        self.matrix = nn.Parameter(
            conv.weight.new_zeros(aligned(flat), aligned(self.channels)), requires_grad=False
        )
        self.shift = nn.Parameter(
            conv.weight.new_zeros(aligned(self.channels)), requires_grad=False
        )
        inside = self.matrix[:flat, : self.channels].view(
            *self.kernel, self.channels_in, self.channels
        )
        self.views = {"weight": inside.permute(3, 2, 0, 1), "bias": self.shift[: self.channels]}

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        """Whether tensor cores have no good kernel for it, and its windows are small enough to be
        materialised."""
        odd = conv.in_channels % ALIGNMENT or conv.out_channels % ALIGNMENT
        simple = (
            conv.stride == (1, 1)
            and conv.dilation == (1, 1)
            and conv.groups == 1
            and isinstance(conv.padding, tuple)
        )
        return (
            bool(odd)
            and simple
            and conv.padding_mode == "zeros"
            and conv.in_channels * math.prod(conv.kernel_size) <= 512
        )

    def forward(self, x: Tensor) -> Tensor:
        down, right = self.padding
        x = F.pad(x.to(self.matrix.dtype).permute(0, 2, 3, 1), (0, 0, right, right, down, down))
        out = _Windows.apply(x, *self.kernel) @ self.matrix + self.shift
        return out[..., : self.channels].permute(0, 3, 1, 2)


class _Windows(torch.autograd.Function):
    """The flattened window of each pixel of (N, H, W, C). Compiled, forward and backward are one
    kernel each; autograd's own backward is many kernels, or one with atomic additions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, columns: int) -> Tensor:
        ctx.kernel, ctx.channels = (rows, columns), x.shape[3]
        x = x.contiguous()
        (n, height, width, channels), (image, row, column, _) = x.shape, x.stride()
        size = (n, height - rows + 1, width - columns + 1, rows, columns, channels)
        # as_strided rather than unfold: the compiler then materialises x once, instead of
        # recomputing it for every window that a pixel is in.
        flat = x.as_strided(size, (image, row, column, row, column, 1)).flatten(3)
        return F.pad(flat, (0, aligned(flat.shape[3]) - flat.shape[3]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (g,), (rows, columns) = grads, ctx.kernel
        g = g[..., : rows * columns * ctx.channels].unflatten(3, (rows, columns, ctx.channels))
        moved = [
            F.pad(g[:, :, :, i, j], (0, 0, j, columns - 1 - j, i, rows - 1 - i))
            for i in range(rows)
            for j in range(columns)
        ]
        return sum(moved[1:], moved[0]), None, None


class PaddedLinear(ReplacementLayer):
    """A linear layer with zero-padded weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        size, padded = (
            (linear.out_features, linear.in_features),
            (aligned(linear.out_features), aligned(linear.in_features)),
        )
        self.size, self.padding = size, padded[1] - size[1]
        self.matrix = nn.Parameter(linear.weight.new_zeros(padded), requires_grad=False)
        self.shift = nn.Parameter(linear.weight.new_zeros(padded[0]), requires_grad=False)
        self.views = {"weight": self.matrix[: size[0], : size[1]], "bias": self.shift[: size[0]]}

    @staticmethod
    def suits(linear: nn.Linear) -> bool:
        return bool(linear.in_features % ALIGNMENT or linear.out_features % ALIGNMENT)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.pad(x, (0, self.padding)).to(self.matrix.dtype), self.matrix, self.shift)[
            ..., : self.size[0]
        ]


class PaddedConv2d(ReplacementLayer):
    """A convolution of fewer than eight input channels, with zero-padded weights and inputs."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding = ALIGNMENT - conv.in_channels
        self.conv = copy.copy(conv)
        padded = conv.weight.new_zeros(conv.out_channels, ALIGNMENT, *conv.kernel_size).contiguous(
            memory_format=torch.channels_last
        )
        self.conv._parameters = {
            **conv._parameters,
            "weight": nn.Parameter(padded, requires_grad=False),
        }
        self.views = {"weight": self.conv.weight[:, : conv.in_channels]}
        if self.conv.bias is not None:
            self.views["bias"] = self.conv.bias

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        return conv.in_channels < ALIGNMENT and conv.groups == 1

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 0, 0, 0, 0, self.padding)))


class ConvReLU(ReplacementLayer):
    """Convolution, bias and ReLU as one cuDNN kernel: the convolution's output never goes to
    memory."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.filters = nn.Parameter(
            conv.weight.contiguous(memory_format=torch.channels_last), requires_grad=False
        )
        self.shift = conv.bias
        self.stride, self.padding = list(conv.stride), [int(p) for p in conv.padding]
        self.views = {"weight": self.filters, "bias": self.shift}

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        plain = (
            conv.dilation == (1, 1)
            and conv.groups == 1
            and isinstance(conv.padding, tuple)
            and conv.padding_mode == "zeros"
        )
        return plain and conv.in_channels % ALIGNMENT == 0 and conv.out_channels % ALIGNMENT == 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = conv_relu(
            x.to(self.filters.dtype), self.filters, self.shift, self.stride, self.padding
        )
        return out


@torch.library.custom_op("amata::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, [1, 1], 1)
    return F.relu(F.conv2d(x, weight, bias, stride, padding)).contiguous(
        memory_format=torch.channels_last
    )


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    out = torch.empty(
        F.conv2d(x, weight, bias, stride, padding).shape, dtype=x.dtype, device=x.device
    )
    return out.contiguous(memory_format=torch.channels_last)


def _save_for_backward(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, list[int], list[int]], output: Tensor
) -> None:
    x, weight, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
    """The gradient at the images alone: the weights are frozen."""
    x, weight, output = ctx.saved_tensors
    g = torch.where(output > 0, g, 0).contiguous(memory_format=torch.channels_last)
    options = (ctx.stride, ctx.padding, [1, 1], False, [0, 0], 1, [True, False, False])
    return (
        torch.ops.aten.convolution_backward(g, x, weight, None, *options)[0],
        None,
        None,
        None,
        None,
    )


conv_relu.register_autograd(_backward, setup_context=_save_for_backward)
