"""The network as an attack sees it: frozen, in the attack's precision, with BatchNorm folded away
where a convolution comes before it.

In eval mode BatchNorm is a fixed scale and shift, so conv -> BN is one convolution. A model says
where that is so: a module's `folds` names its parts (convolution, BatchNorm) of which the second
follows the first and nothing else reads between them, and as a third part the ReLU behind them
where there is one.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.engine.layers import ConvReLU, Placed, WideConv2d, WideLinear, WindowConv2d


class Folded(NamedTuple):
    """Where the product of a convolution and the BatchNorm behind it goes."""

    weight: Tensor
    bias: Tensor
    conv: nn.Conv2d
    norm: nn.BatchNorm2d


class AttackCopy:
    """A copy of a model for input gradients. `refresh` brings it up to date after the weights have
    moved."""

    def __init__(
        self, source: nn.Module, *, train_mode: bool, dtype: torch.dtype, shaped: bool = False
    ) -> None:
        """`shaped` replaces layers by ones that compute the same and suit tensor cores."""
        self.model = copy.deepcopy(source).requires_grad_(False).train(train_mode)
        self.folds = [] if train_mode else folds_of(source)
        sources = dict(source.named_modules())
        modules = dict(self.model.named_modules())
        names = [id(module) for _, module in self.model.named_modules(remove_duplicate=False)]
        once = {name for name, module in modules.items() if names.count(id(module)) == 1}
        norm_of = {conv: norm for conv, norm, _ in self.folds}
        relu_of = {conv: relu for conv, _, relu in self.folds}
        for name, norm in norm_of.items():
            conv = modules[name]
            if conv.bias is None:
                conv.bias = nn.Parameter(
                    conv.weight.new_zeros(conv.weight.shape[0]), requires_grad=False
                )
            _replace(self.model, norm, nn.Identity())
        self.folded: list[Folded] = []
        self.copied: list[tuple[Tensor, Tensor]] = []
        for name, module in modules.items():
            original = sources[name]
            if name in norm_of.values():
                continue
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                module.to(dtype)
                layer = (
                    _shaped(module, relu_of.get(name))
                    if shaped and name in once and _is_plain(module)
                    else None
                )
                if layer is not None:
                    _replace(self.model, name, layer)
                if isinstance(layer, ConvReLU):
                    _replace(self.model, str(relu_of[name]), nn.Identity())
                places: dict[str, Tensor] = (
                    layer.places
                    if layer is not None
                    else dict(module.named_parameters(recurse=False))
                )
                if name in norm_of:
                    self.folded.append(
                        Folded(places["weight"], places["bias"], original, sources[norm_of[name]])
                    )
                    continue
            else:
                places = dict(module.named_parameters(recurse=False))
                if train_mode:
                    # statistics of the attacked batch go into the model's own
                    module._buffers = dict(original._buffers)
                else:
                    places |= dict(module.named_buffers(recurse=False))
            theirs = {
                **dict(original.named_parameters(recurse=False)),
                **dict(original.named_buffers(recurse=False)),
            }
            self.copied += [
                (places[leaf], tensor) for leaf, tensor in theirs.items() if leaf in places
            ]
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


def folds_of(model: nn.Module) -> list[tuple[str, str, str | None]]:
    """The full names of (convolution, BatchNorm, ReLU or None) that the model's modules declare in
    `folds`."""
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        prefix = f"{name}." if name else ""
        for conv, bn, *relu in getattr(module, "folds", ()):
            norm = modules.get(prefix + bn)
            if (
                prefix + conv in modules
                and isinstance(norm, nn.BatchNorm2d)
                and norm.track_running_stats
                and norm.affine
            ):
                found.append((prefix + conv, prefix + bn, prefix + relu[0] if relu else None))
    return found


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer computes what its class says from the weights it holds: no subclass, no hook,
    no weights made from others."""
    hooked = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or "forward" in vars(module)
    )
    return (
        type(module) in (nn.Conv2d, nn.Linear)
        and {*module._parameters} == {"weight", "bias"}
        and not module._modules
        and not hooked
    )


def _shaped(module: nn.Module, relu: str | None) -> Placed | None:
    """What computes the same as the layer, with the ReLU behind it where that is given, and is
    faster; or nothing."""
    if isinstance(module, nn.Linear):
        return WideLinear(module) if WideLinear.suits(module) else None
    if not isinstance(module, nn.Conv2d):
        return None
    if WindowConv2d.suits(module):
        return WindowConv2d(module)
    if relu is not None and ConvReLU.suits(module):
        return ConvReLU(module)
    return WideConv2d(module) if WideConv2d.suits(module) else None


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, leaf, module)
