"""Pre-activation residual blocks for input gradients: x + conv2(relu(bn2(conv1(relu(bn1(x)))))).

The blocks run as one chain, because the kernels cross their borders: a block's second convolution
adds the residual and applies the next block's BatchNorm and ReLU, and in the backward pass the
first convolution's input gradient is masked, scaled and added to the residual's. A model declares
its chain in the attribute `preact_chain`: the names of a Sequential of such blocks and of the
BatchNorm behind it, which a ReLU follows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata.engine import kernels_ahead
from amata.engine.fused_conv import fused_conv, fused_conv_gradient
from amata.engine.halo_launch import CHANNELS, available, tile_for
from amata.engine.layers import ConvReLU, conv_relu


class PreActChain(nn.Module):
    """Replaces the blocks and the BatchNorm behind them: returns relu(norm(blocks(x))). BatchNorms
    are in eval mode, and bn2 and its ReLU are part of conv1 already."""

    def __init__(self, blocks: nn.Sequential, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        every: list[Any] = [*blocks]
        norms = [*(block.bn1 for block in every), norm]
        self.scales: list[Tensor] = [torch.ones_like(norm.weight) for norm in norms]
        self.shifts: list[Tensor] = [torch.zeros_like(norm.weight) for norm in norms]
        self.blocks: Any = blocks
        self.norms: Any = nn.ModuleList(norms)
        self.kernels = available(norm.weight.device)
        if self.kernels:
            kernels_ahead.prepare()

    @staticmethod
    def suits(blocks: nn.Module, norm: nn.Module) -> bool:
        """Whether these are such blocks, in widths and on a device with own kernels. A CPU computes
        the same with PyTorch's operations."""
        if not isinstance(blocks, nn.Sequential) or not _has_statistics(norm):
            return False
        device = next(norm.parameters()).device
        return (
            all(map(_is_block, blocks))
            and any(_width(block) in CHANNELS for block in blocks)
            and (device.type == "cpu" or available(device))
        )

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute scale and shift from the BatchNorms."""
        variances = [norm.running_var + norm.eps for norm in self.norms]
        torch._foreach_copy_(self.scales, [norm.weight for norm in self.norms])
        torch._foreach_div_(self.scales, torch._foreach_sqrt(variances))
        moved = torch._foreach_mul([norm.running_mean for norm in self.norms], self.scales)
        torch._foreach_copy_(self.shifts, [norm.bias for norm in self.norms])
        torch._foreach_sub_(self.shifts, moved)

    def forward(self, x: Tensor) -> Tensor:
        a: Tensor | None = None
        bits: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            identity = block.shortcut is None
            scale, shift = self.scales[index], self.shifts[index]
            if a is None:
                # The gradient of an identity block reaches x alone, through its backward.
                a = _scale_shift_relu(x.detach() if identity else x, scale, shift).to(
                    block.conv2.weight.dtype
                )
            following = self.blocks[index + 1] if index + 1 < len(self.blocks) else None
            keep_sum = following is not None and following.shortcut is None
            x, a, *bits = _Block.apply(
                x.to(a.dtype) if identity else block.shortcut(a),
                a,
                bits[0] if bits else None,
                block.conv1.filters,
                block.conv1.shift,
                block.conv2.weight,
                scale,
                self.scales[index + 1],
                self.shifts[index + 1],
                block.conv1.stride[0],
                identity,
                keep_sum,
                self.kernels,
            )
        assert a is not None
        return a


def _has_statistics(norm: object) -> bool:
    return type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats


def _width(block: Any) -> int:
    width: int = block.conv2.out_channels
    return width


def _is_block(block: Any) -> bool:
    """Whether a block of the attack copy is as declared, with bn2 and relu2 folded into conv1."""
    conv1, conv2, shortcut = (getattr(block, n, None) for n in ("conv1", "conv2", "shortcut"))
    return (
        _has_statistics(getattr(block, "bn1", None))
        and isinstance(conv1, ConvReLU)
        and conv1.filters.shape[2:] == (3, 3)
        and conv1.padding == [1, 1]
        and type(conv2) is nn.Conv2d
        and conv2.bias is None
        and (conv2.kernel_size, conv2.stride, conv2.padding) == ((3, 3), (1, 1), (1, 1))
        and (conv2.dilation, conv2.groups, conv2.padding_mode) == ((1, 1), 1, "zeros")
        and (shortcut is None or type(shortcut) is nn.Conv2d)
        and getattr(block, "feed_preact", True)
    )


class _Block(torch.autograd.Function):
    """y = residual + conv2(relu(conv1(a))) and the next block's activation.

    Where the next block needs y (`keep_sum`), the gradient comes in at y: the next block's backward
    includes its own activation. Else y is not kept and the gradient comes in at the activation.
    Likewise the gradient of an identity block leaves at the residual alone. `bits` are those of
    a > 0, from the kernel that computed a.
    """

    @staticmethod
    def forward(
        ctx: Any,
        residual: Tensor,
        a: Tensor,
        bits: Tensor | None,
        weight1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        scale: Tensor,
        next_scale: Tensor,
        next_shift: Tensor,
        stride: int,
        identity: bool,
        keep_sum: bool,
        kernels: bool,
    ) -> tuple[Tensor, ...]:
        ctx.stride, ctx.identity, ctx.keep_sum, ctx.kernels = stride, identity, keep_sum, kernels
        if kernels and stride == 1 and tile_for(a, len(weight1)):
            hidden, hidden_mask, _ = fused_conv(a, weight1, bias1, None, None, False)
        else:
            hidden = hidden_mask = conv_relu(a, weight1, bias1, [stride, stride], [1, 1])
        if kernels and tile_for(hidden, len(weight2)):
            out, out_bits, y = fused_conv(
                hidden, weight2, next_shift, next_scale, residual, keep_sum
            )
            results: tuple[Tensor, ...] = (y, out, out_bits)
        else:
            y = F.conv2d(hidden, weight2, padding=1) + residual
            out = _scale_shift_relu(y, next_scale, next_shift).to(a.dtype)
            results = (y, out)
        mask = a if bits is None else bits
        ctx.save_for_backward(a, mask, hidden_mask, out, weight1, weight2, scale, next_scale)
        ctx.mark_non_differentiable(out if keep_sum else y, *results[2:])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, mask, hidden_mask, out, weight1, weight2, scale, next_scale = ctx.saved_tensors
        if ctx.keep_sum:
            g = grads[0]
        else:
            g = torch.where(out > 0, grads[1] * _per_channel(next_scale), 0).to(out.dtype)
        hidden = _gradient(g, weight2, hidden_mask, ctx.kernels)
        if ctx.identity:
            to_a, to_residual = None, _gradient(hidden, weight1, mask, ctx.kernels, scale, g)
        else:
            to_a, to_residual = _input_gradient(hidden, a, weight1, ctx.stride), g
        return to_residual, to_a, *(None for _ in range(11))


def _gradient(
    g: Tensor,
    weight: Tensor,
    mask: Tensor,
    kernels: bool,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """The input gradient of a convolution, masked by the ReLU in front of it; with a residual also
    scaled by the BatchNorm in front of that, and added to the residual's."""
    if kernels and tile_for(g, weight.shape[1]):
        return fused_conv_gradient(g, weight, mask, scale, residual)
    g = _input_gradient(g, g, weight, 1)
    if scale is None or residual is None:
        return torch.where(mask > 0, g, 0)
    return (torch.where(mask > 0, g * _per_channel(scale), 0) + residual).to(g.dtype)


def _input_gradient(g: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    options = ([stride, stride], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
    g = g.contiguous(memory_format=torch.channels_last)
    gradient: Tensor = torch.ops.aten.convolution_backward(g, x, weight, None, *options)[0]
    return gradient


def _scale_shift_relu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.relu(x * _per_channel(scale) + _per_channel(shift))


def _per_channel(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)
