"""A copy of the network for attacks: frozen, in the attack's precision, with BatchNorms folded into
convolutions.

In eval mode BatchNorm is a fixed scale and shift, so conv -> BN is one convolution. A module
declares such pairs in its attribute `foldable_batchnorms`: tuples of the names of a convolution,
the BatchNorm that alone reads its output and, where one follows, the ReLU behind it.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.engine.layers import (
    ConvReLU,
    PaddedConv2d,
    PaddedLinear,
    ReplacementLayer,
    WindowConv2d,
)
from amata.engine.preact import PreActChain


class Folded(NamedTuple):
    """A convolution, the BatchNorm behind it, and the tensors that hold their product."""

    weight: Tensor
    bias: Tensor
    conv: nn.Conv2d
    norm: nn.BatchNorm2d


class AttackCopy:
    """A copy of a model for input gradients. `refresh` copies the model's weights into it again."""

    def __init__(
        self,
        source: nn.Module,
        *,
        train_mode: bool,
        dtype: torch.dtype,
        tensor_core_layers: bool = False,
    ) -> None:
        """`tensor_core_layers` replaces layers by equivalent ones that suit tensor cores."""
        self.model = copy.deepcopy(source).requires_grad_(False).train(train_mode)
        self.folds = [] if train_mode else find_foldable_batchnorms(source)
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
                    _tensor_core_layer(module, relu_of.get(name))
                    if tensor_core_layers and name in once and _is_plain(module)
                    else None
                )
                if layer is not None:
                    _replace(self.model, name, layer)
                if isinstance(layer, ConvReLU):
                    _replace(self.model, str(relu_of[name]), nn.Identity())
                targets: dict[str, Tensor] = (
                    layer.views
                    if layer is not None
                    else dict(module.named_parameters(recurse=False))
                )
                if name in norm_of:
                    self.folded.append(
                        Folded(targets["weight"], targets["bias"], original, sources[norm_of[name]])
                    )
                    continue
            else:
                targets = dict(module.named_parameters(recurse=False))
                if train_mode:
                    # attacks update the running statistics of the model itself
                    module._buffers = dict(original._buffers)
                else:
                    targets |= dict(module.named_buffers(recurse=False))
            tensors = {
                **dict(original.named_parameters(recurse=False)),
                **dict(original.named_buffers(recurse=False)),
            }
            self.copied += [
                (targets[leaf], tensor) for leaf, tensor in tensors.items() if leaf in targets
            ]
        self.chains: list[PreActChain] = []
        if tensor_core_layers and not train_mode:
            self._replace_chains()
        self.refresh()

    def _replace_chains(self) -> None:
        """Let pre-activation blocks run as one chain, where the model declares one."""
        for module in list(self.model.modules()):
            names: tuple[str, str] | None = getattr(module, "preact_chain", None)
            if names is None:
                continue
            blocks, norm = (getattr(module, name) for name in names)
            if PreActChain.suits(blocks, norm):
                chain = PreActChain(blocks, norm)
                setattr(module, names[0], chain)
                setattr(module, names[1], nn.Identity())
                self.chains.append(chain)

    def refresh(self) -> None:
        copy_and_fold(self.copied, self.folded, self.chains)


@torch.no_grad()
def copy_and_fold(
    copied: list[tuple[Tensor, Tensor]], folded: list[Folded], chains: list[PreActChain]
) -> None:
    """Copy each second tensor into the first, and write the products of folded layers."""
    if copied:
        torch._foreach_copy_([a for a, _ in copied], [b for _, b in copied])
    for weight, bias, conv, norm in folded:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
        bias.copy_(shift if conv.bias is None else shift + conv.bias * scale)
    for chain in chains:
        chain.refresh()


def find_foldable_batchnorms(model: nn.Module) -> list[tuple[str, str, str | None]]:
    """The full names of (convolution, BatchNorm, ReLU or None) that the model's modules declare in
    `foldable_batchnorms`."""
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        prefix = f"{name}." if name else ""
        for conv, bn, *relu in getattr(module, "foldable_batchnorms", ()):
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
    """Whether a layer is exactly nn.Conv2d or nn.Linear: no subclass, no hook, no
    parametrisation."""
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


def _tensor_core_layer(module: nn.Module, relu: str | None) -> ReplacementLayer | None:
    """An equivalent and faster layer, if there is one. A `ConvReLU` includes the ReLU behind the
    convolution."""
    if isinstance(module, nn.Linear):
        return PaddedLinear(module) if PaddedLinear.suits(module) else None
    if not isinstance(module, nn.Conv2d):
        return None
    if WindowConv2d.suits(module):
        return WindowConv2d(module)
    if relu is not None and ConvReLU.suits(module):
        return ConvReLU(module)
    return PaddedConv2d(module) if PaddedConv2d.suits(module) else None


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent) if parent else model, leaf, module)
