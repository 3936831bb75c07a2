"""Layers as tensor cores like them, for networks that only have to give input gradients.

Each stands for a layer of the network and computes the same: a convolution of few or odd channels
as a matrix product over windows, a linear layer whose sizes are brought to eights by zeros, and a
convolution with its bias and the ReLU behind it in one kernel.
"""

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EIGHT = 8
"""Tensor cores take bf16 in eights."""


def to_eights(n: int) -> int:
    return math.ceil(n / EIGHT) * EIGHT


class Placed(nn.Module):
    """A layer whose weights lie inside larger tensors. `places` says where: tensors of the shapes
    that the layer it stands for has."""

    places: dict[str, Tensor]


class WindowConv2d(Placed):
    """A convolution of stride 1 as one matrix product: each pixel's window, laid out flat, times
    the weights."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.kernel, self.padding = (
            (conv.kernel_size[0], conv.kernel_size[1]),
            (int(conv.padding[0]), int(conv.padding[1])),
        )
        self.channels_in, self.channels = conv.in_channels, conv.out_channels
        flat = self.channels_in * self.kernel[0] * self.kernel[1]
        self.matrix = nn.Parameter(
            conv.weight.new_zeros(to_eights(flat), to_eights(self.channels)), requires_grad=False
        )
        self.shift = nn.Parameter(
            conv.weight.new_zeros(to_eights(self.channels)), requires_grad=False
        )
        inside = self.matrix[:flat, : self.channels].view(
            *self.kernel, self.channels_in, self.channels
        )
        self.places = {"weight": inside.permute(3, 2, 0, 1), "bias": self.shift[: self.channels]}

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        """Whether tensor cores have no good kernel for it, and windows are small enough to be laid
        out."""
        odd = conv.in_channels % EIGHT or conv.out_channels % EIGHT
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
    """Each pixel's window of (N, H, W, C), laid out flat. Both ways are one kernel when compiled;
    what PyTorch derives for the way back is many, or one with atomic additions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, columns: int) -> Tensor:
        ctx.kernel, ctx.channels = (rows, columns), x.shape[3]
        x = x.contiguous()
        (n, height, width, channels), (image, row, column, _) = x.shape, x.stride()
        size = (n, height - rows + 1, width - columns + 1, rows, columns, channels)
        # as_strided rather than unfold: what comes before is then written down once, not computed
        # anew for each of a pixel's windows.
        flat = x.as_strided(size, (image, row, column, row, column, 1)).flatten(3)
        return F.pad(flat, (0, to_eights(flat.shape[3]) - flat.shape[3]))

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


class WideLinear(Placed):
    """A linear layer with zeros around its weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        size, room = (
            (linear.out_features, linear.in_features),
            (to_eights(linear.out_features), to_eights(linear.in_features)),
        )
        self.size, self.spare = size, room[1] - size[1]
        self.weight = nn.Parameter(linear.weight.new_zeros(room), requires_grad=False)
        self.bias = nn.Parameter(linear.weight.new_zeros(room[0]), requires_grad=False)
        self.places = {"weight": self.weight[: size[0], : size[1]], "bias": self.bias[: size[0]]}

    @staticmethod
    def suits(linear: nn.Linear) -> bool:
        return bool(linear.in_features % EIGHT or linear.out_features % EIGHT)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.pad(x, (0, self.spare)).to(self.weight.dtype), self.weight, self.bias)[
            ..., : self.size[0]
        ]


class WideConv2d(Placed):
    """A convolution of fewer than eight input channels, widened by zeros; images are widened
    too."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.spare = EIGHT - conv.in_channels
        self.conv = copy.copy(conv)
        wide = conv.weight.new_zeros(conv.out_channels, EIGHT, *conv.kernel_size).contiguous(
            memory_format=torch.channels_last
        )
        self.conv._parameters = {
            **conv._parameters,
            "weight": nn.Parameter(wide, requires_grad=False),
        }
        self.places = {"weight": self.conv.weight[:, : conv.in_channels]}
        if self.conv.bias is not None:
            self.places["bias"] = self.conv.bias

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        return conv.in_channels < EIGHT and conv.groups == 1

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 0, 0, 0, 0, self.spare)))


class ConvReLU(Placed):
    """ReLU of a convolution with a bias, as cuDNN's one kernel: what comes out of the convolution
    is never written to memory."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.weight = nn.Parameter(
            conv.weight.contiguous(memory_format=torch.channels_last), requires_grad=False
        )
        self.bias = conv.bias
        self.stride, self.padding = list(conv.stride), [int(p) for p in conv.padding]
        self.places = {"weight": self.weight, "bias": self.bias}

    @staticmethod
    def suits(conv: nn.Conv2d) -> bool:
        plain = (
            conv.dilation == (1, 1)
            and conv.groups == 1
            and isinstance(conv.padding, tuple)
            and conv.padding_mode == "zeros"
        )
        return plain and conv.in_channels % EIGHT == 0 and conv.out_channels % EIGHT == 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = conv_relu(
            x.to(self.weight.dtype), self.weight, self.bias, self.stride, self.padding
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


def _remember(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, list[int], list[int]], output: Tensor
) -> None:
    x, weight, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _back(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
    """To the images alone: the weights are frozen."""
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


conv_relu.register_autograd(_back, setup_context=_remember)
