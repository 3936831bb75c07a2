"""What a network says of single images, and whether an attack changes it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.attacks import parse_attack
from amata.attacks.checks import forward
from amata.errors import InputError
from amata.formatting import describe_ball
from amata.threat import Ball

ATTACK = "pgd-50"
"""The attack of `amata predict --robust`."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image with their probabilities, the first one first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    attacked: str | None = None
    """The class of the attacked image; None without attack."""


def predict(
    model: nn.Module,
    x: Tensor,
    names: Sequence[str],
    *,
    top: int = 1,
    ball: Ball | None = None,
    seed: int = 0,
) -> list[Prediction]:
    """The `top` classes of each image of x. With `ball`, ATTACK tries to change the first one."""
    with torch.no_grad():
        p = forward(model, x).softmax(1)
    if p.shape[1] != len(names):
        raise InputError(f"the model has {p.shape[1]} outputs for {len(names)} classes")
    if not p.isfinite().all():
        raise InputError("the logits of the model are not finite; its training diverged")
    best = p.topk(min(top, len(names)), dim=1)
    attacked: list[str | None] = [None] * len(x)
    if ball is not None:
        x_adv = parse_attack(ATTACK)(model, x, best.indices[:, 0], ball=ball, seed=seed)
        with torch.no_grad():
            attacked = [names[c] for c in forward(model, x_adv).argmax(1).tolist()]
    rows = zip(best.indices.tolist(), best.values.tolist(), attacked, strict=True)
    return [Prediction(tuple(names[c] for c in found), tuple(v), a) for found, v, a in rows]


def describe_attack(ball: Ball) -> str:
    """The attack and the ball, such as "pgd-50, L∞ 8/255"."""
    return f"{ATTACK}, {describe_ball(ball.norm, ball.eps)}"
