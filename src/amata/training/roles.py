"""The role of each weight, which decides how Muon updates it: hidden, embedding or classifier."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amata.attacks.preserve import untouched
from amata.engine.cudnn import no_cudnn_benchmark

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Matrices that nn.MultiheadAttention holds itself, without a layer."""
SIDES = (32, 28, 64, 96, 224)
"""Sizes of images that are tried if the data do not say theirs."""


def hidden_weights(model: nn.Module, shape: tuple[int, ...] | None = None) -> set[Tensor]:
    """The weights of hidden layers: of linear layers, convolutions and attention, without the
    classifier and the patch embedding.

    Biases, norms, position embeddings, class tokens and nn.Embedding are no weights of such layers.
    A forward pass with one image of `shape` finds the classifier, wherever it is registered: the
    layers with no other layer between them and the logits. If there can be no such pass, it is the
    last layer that is registered.
    """
    layers = [m for m in model.modules() if isinstance(m, LAYERS)]
    last = [m.weight for m in layers[-1:]]
    outer = next(filter(None, (_outer(model, s) for s in _shapes(layers, shape))), last)
    found: set[Tensor] = {m.weight for m in layers}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            own = dict(module.named_parameters(recurse=False))
            found |= {own[name] for name in PROJECTIONS if name in own}
    return found - set(outer)


def _shapes(layers: list[Any], shape: tuple[int, ...] | None) -> Iterator[tuple[int, ...]]:
    if shape is not None:
        yield shape
        return
    convs = [m for m in layers if not isinstance(m, nn.Linear)]
    for side in SIDES if convs else ():
        yield (convs[0].in_channels, side, side)


def _outer(model: nn.Module, shape: tuple[int, ...]) -> list[Tensor]:
    """The weights of the classifier and of the patch embedding; empty if the model cannot take the
    shape."""
    made: dict[Any, nn.Module] = {}
    embedding: list[Tensor] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        if not made and isinstance(module, LAYERS) and _embeds_patches(module, args[0]):
            embedding.append(module.weight)
        made[(output[0] if isinstance(output, tuple) else output).grad_fn] = module

    kinds = (*LAYERS, nn.MultiheadAttention)
    hooks = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, kinds)]
    first = next(model.parameters())
    try:
        with untouched(model), no_cudnn_benchmark():
            for p in model.parameters():  # frozen ones too: they are part of the graph then
                p.requires_grad_(p.is_floating_point())
            x = torch.zeros(1, *shape, dtype=first.dtype, device=first.device)
            z = model(x.requires_grad_().clone())
            last = _last_weights(z, made)
    except Exception:  # any error of somebody's network: it cannot take this image
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return [*embedding, *last] if last else []


def _embeds_patches(layer: Any, x: Tensor) -> bool:
    """Whether the first layer of a network maps patches that do not overlap to vectors."""
    if isinstance(layer, nn.Linear):
        return x.dim() > 2  # (images, patches, pixels)
    return bool(layer.kernel_size == layer.stride and max(layer.kernel_size) > 1)


def _last_weights(z: Tensor, made: dict[Any, nn.Module]) -> list[Tensor]:
    """The weights that are reached from the logits, back through the autograd graph, without
    passing through a layer. Of several, those with one output per class are meant."""
    reached: list[Tensor] = []
    seen, queue = set(), [z.grad_fn]
    while queue:
        node: Any = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in made:
            reached += [made[node].weight] if isinstance(made[node], LAYERS) else []  # type: ignore[list-item]
        elif hasattr(node, "variable"):  # a parameter that the network uses without a layer
            reached += [node.variable] if node.variable.dim() > 1 else []
        else:
            queue += [parent for parent, _ in node.next_functions]
    return [w for w in reached if w.shape[0] == z.shape[1]] or reached
