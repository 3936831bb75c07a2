"""The network as an attack sees it: frozen, in the attack's precision, with BatchNorm folded away where a convolution comes before it.

In eval mode BatchNorm is a fixed scale and shift, so conv -> BN is one convolution. A model says where that is so: a module's `folds` names
pairs of its parts (convolution, BatchNorm) of which the second follows the first and nothing else reads between them.
"""

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EIGHT = 8
"""Tensor cores take bf16 channels in eights."""


class PaddedConv2d(nn.Conv2d):
    """A convolution that was widened by zeros: images with fewer channels than it has are widened by zeros too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 0, 0, 0, 0, self.in_channels - x.shape[1])))


class Folded(NamedTuple):
    """Where the product of a convolution and the BatchNorm behind it goes."""

    weight: Tensor
    bias: Tensor
    conv: nn.Conv2d
    norm: nn.BatchNorm2d


class AttackedNet:
    """A copy of a model for input gradients. `refresh` brings it up to date after the weights have moved."""

    def __init__(self, source: nn.Module, *, train_mode: bool, dtype: torch.dtype, padded: bool = False) -> None:
        """`padded` widens convolutions of few channels, such as the first one's three colours, to eight."""
        self.model = copy.deepcopy(source).requires_grad_(False).train(train_mode)
        self.pairs = [] if train_mode else folded_pairs(source)
        modules, sources = dict(self.model.named_modules()), dict(source.named_modules())
        theirs = dict(source.named_parameters())
        for conv_name, bn_name in self.pairs:
            conv = modules[conv_name]
            if conv.bias is None:
                conv.bias = nn.Parameter(conv.weight.new_zeros(conv.weight.shape[0]), requires_grad=False)
            _replace(self.model, bn_name, nn.Identity())
        weights: dict[str, Tensor] = {}
        """Where the weights of convolutions and linear layers go, by module."""
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                module.to(dtype)
                weights[name] = module.weight
            elif train_mode:
                module._buffers = dict(sources[name]._buffers)  # statistics of the attacked batch go into the model's own
            if padded and isinstance(module, nn.Conv2d) and module.in_channels < EIGHT and module.groups == 1:
                weights[name] = _widen(module)
        self.folded = [Folded(weights[c], modules[c].bias, sources[c], sources[b]) for c, b in self.pairs]
        done = {f"{conv}.{leaf}" for conv, _ in self.pairs for leaf in ("weight", "bias")}
        self.copied: list[tuple[Tensor, Tensor]] = []
        for name, parameter in self.model.named_parameters():
            if name in theirs and name not in done:
                room, _, leaf = name.rpartition(".")
                self.copied.append((weights[room] if leaf == "weight" and room in weights else parameter, theirs[name]))
        originals = dict(source.named_buffers())
        self.copied += [(b, originals[n]) for n, b in self.model.named_buffers() if n in originals and b is not originals[n]]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        if self.copied:
            torch._foreach_copy_([a for a, _ in self.copied], [b for _, b in self.copied])
        for weight, bias, conv, norm in self.folded:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            shift = norm.bias - norm.running_mean * scale
            weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
            bias.copy_(shift if conv.bias is None else shift + conv.bias * scale)


def _widen(conv: nn.Conv2d) -> Tensor:
    """Add channels of zeros in front of which nothing will ever stand; returns the part of the weights that is the old ones."""
    old = conv.weight
    wide = old.new_zeros(old.shape[0], EIGHT, *old.shape[2:]).contiguous(memory_format=torch.channels_last)
    conv.weight, conv.in_channels, conv.__class__ = nn.Parameter(wide, requires_grad=False), EIGHT, PaddedConv2d
    return conv.weight[:, : old.shape[1]]


def folded_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """The full names of (convolution, BatchNorm) pairs that the model's modules declare in `folds`."""
    modules = dict(model.named_modules())
    pairs = []
    for name, module in modules.items():
        prefix = f"{name}." if name else ""
        for conv, bn in getattr(module, "folds", ()):
            norm = modules.get(prefix + bn)
            if prefix + conv in modules and isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats and norm.affine:
                pairs.append((prefix + conv, prefix + bn))
    return pairs


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, leaf, module)
