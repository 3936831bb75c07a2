"""Forward passes and losses as functions of the network. The network is an argument, so that what
torch.compile makes of them serves every network of the same structure in a process."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amata.errors import InputError
from amata.losses import Loss, as_logits


class Pass(NamedTuple):
    """A backward pass over the whole network, to be repeated: the arguments of `_backward`, and
    where the weights are perturbed, the part's fraction of its batch, the method's own scale and
    AWP's gamma."""

    inputs: tuple[Tensor, ...]
    y: Tensor
    loss: Callable[..., Tensor]
    given: tuple[Tensor, ...]
    scale: float
    part_weight: float = 1.0
    own_scale: float = 1.0
    gamma: float = 0.0


def forward(model: nn.Module, x: Tensor, bf16: bool) -> Tensor:
    """The logits, with `bf16` under autocast; in fp32 at least."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
        z = as_logits(model(x))
    return z.float() if z.dtype == torch.bfloat16 else z


def per_image(losses: Tensor, n: int) -> Tensor:
    """The losses of n images. A loss that is already a mean or a sum is refused: it would have
    neither class weights nor parts of a batch."""
    if not isinstance(losses, Tensor):
        raise InputError(f"the loss must return a tensor, not {type(losses).__name__}")
    if losses.shape != (n,):
        raise InputError(
            f"the loss must return one value for each of {n} images, not the shape "
            f"{tuple(losses.shape)}; use reduction='none'"
        )
    return losses


def mean_loss(losses: Tensor, y: Tensor, class_weights: Tensor | None) -> Tensor:
    """The batch mean of the losses, each times the weight of its class."""
    losses = per_image(losses, len(y))
    return (losses if class_weights is None else class_weights[y] * losses).mean()


def attack_objective(
    model: nn.Module, loss: Loss, bf16: bool, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """What an attack ascends, and the logits. The sum, not the mean: small gradients underflow in
    bf16."""
    z = forward(model, x, bf16)
    return per_image(loss(z, y), len(x)).sum(), z


def update_objective(
    model: nn.Module,
    loss: Callable[..., Tensor],
    class_weights: Tensor | None,
    bf16: bool,
    xs: tuple[Tensor, ...],
    y: Tensor,
    given: tuple[Tensor, ...] = (),
) -> Tensor:
    """What an update descends."""
    return mean_loss(loss(*[forward(model, x, bf16) for x in xs], y, *given), y, class_weights)
