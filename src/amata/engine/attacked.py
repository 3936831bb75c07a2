"""The network as an attack sees it: frozen, in the attack's precision, with BatchNorm folded away where a convolution comes before it.

In eval mode BatchNorm is a fixed scale and shift, so conv -> BN is one convolution. A model says where that is so: a module's `folds` names
pairs of its parts (convolution, BatchNorm) of which the second follows the first and nothing else reads between them.
"""

import copy

import torch
from torch import Tensor, nn


class AttackedNet:
    """A copy of a model for input gradients. `refresh` brings it up to date after the weights have moved."""

    def __init__(self, source: nn.Module, *, train_mode: bool, dtype: torch.dtype) -> None:
        self.source = source
        self.model = copy.deepcopy(source).requires_grad_(False)
        self.model.train(train_mode)
        if train_mode:
            self.pairs: list[tuple[str, str]] = []
        else:
            self.pairs = folded_pairs(source)
        folded = {bn for _, bn in self.pairs}
        self.fold: list[tuple[nn.Module, nn.Module, nn.Module]] = []
        modules, sources = dict(self.model.named_modules()), dict(source.named_modules())
        for conv_name, bn_name in self.pairs:
            conv = modules[conv_name]
            if conv.bias is None:
                conv.bias = nn.Parameter(conv.weight.new_zeros(conv.weight.shape[0]), requires_grad=False)
            self.fold.append((conv, sources[conv_name], sources[bn_name]))
            _replace(self.model, bn_name, nn.Identity())
        weighty = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
        for name, module in self.model.named_modules():
            if isinstance(module, weighty):
                module.to(dtype)
            elif train_mode and name not in folded:
                module._buffers = dict(sources[name]._buffers)  # statistics of the attacked batch go into the model's own
        convs = {conv for conv, _ in self.pairs}
        own, theirs = dict(self.model.named_parameters()), dict(source.named_parameters())
        self.copied: list[tuple[Tensor, Tensor]] = [(own[n], theirs[n]) for n in own if n in theirs and n.rpartition(".")[0] not in convs]
        buffers, originals = dict(self.model.named_buffers()), dict(source.named_buffers())
        self.copied += [(b, originals[n]) for n, b in buffers.items() if n in originals and b is not originals[n]]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        if self.copied:
            torch._foreach_copy_([a for a, _ in self.copied], [b for _, b in self.copied])
        for conv, theirs, bn in self.fold:
            scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)  # type: ignore[operator]
            bias = bn.bias - bn.running_mean * scale  # type: ignore[operator]
            if theirs.bias is not None:
                bias = bias + theirs.bias * scale  # type: ignore[operator]
            conv.weight.copy_(theirs.weight * scale.view(-1, *[1] * (conv.weight.dim() - 1)))  # type: ignore[operator]
            conv.bias.copy_(bias)  # type: ignore[operator]


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
