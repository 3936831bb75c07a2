"""AutoAttack (Croce & Hein 2020, arXiv 2003.01690), run by pyautoattack, a package of the authors'
code.

The `standard` version runs APGD-CE, targeted APGD-DLR and targeted FAB (100 iterations each), then
Square (5,000 queries). Each attacks only the images that the previous ones did not break.

The DLR loss compares three logits, its targeted form four. Models with fewer classes are attacked
by the others alone. Targeted attacks have nine target classes, or all but one of fewer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from amata.attacks.base import Attack
from amata.attacks.checks import check_images, check_model, check_module
from amata.attacks.preserve import untouched
from amata.attacks.randomness import draw_seed
from amata.errors import InputError, missing
from amata.quantity import choice, whole
from amata.threat import Ball, check_ball

_NORMS = {"linf": "Linf", "l2": "L2"}
_MIN_CLASSES = {"apgd-t": 4, "apgd-dlr": 3}
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
"""Of the standard version."""
Version = Literal["standard", "plus", "rand"]


def autoattack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    version: Version = "standard",
    batch_size: int = 250,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The adversarial images found by AutoAttack. Images it could not break are returned unchanged.

    Its seed is drawn from `generator`, or from torch's global generator.
    """
    choice(version, "version", get_args(Version))
    batch_size = whole(batch_size, "batch_size", 1)
    return _run(model, x, y, ball, version, batch_size, draw_seed(generator))


def _run(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    version: Version,
    batch_size: int,
    seed: int,
    part: Callable[[str], None] | None = None,
) -> Tensor:
    try:
        import pyautoattack
    except ImportError:
        raise missing("pyautoattack", "AutoAttack", "autoattack") from None
    check_module(model)
    check_ball(ball)
    check_images(x, y)
    with untouched(model):
        classes = check_model(model, x, y)
        if classes < 2:
            raise InputError("AutoAttack needs at least 2 classes, and the model has 1")
        with _fork_rng(x.device):
            attack: Any = pyautoattack.AutoAttack(
                _FiniteGradients(model),
                eps=ball.eps,
                norm=_NORMS[ball.norm],
                device=x.device,
                seed=seed % 2**32,
                version=version,
            )
            attack.attacks_to_run = [
                name for name in attack.attacks_to_run if classes >= _MIN_CLASSES.get(name, 2)
            ]
            attack.apgd_targeted.n_target_classes = min(9, classes - 1)
            attack.fab.n_target_classes = min(9, classes - 1)
            if part is not None:
                _announce(attack, part)
            x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
    return x_adv.detach()


def _announce(attack: Any, part: Callable[[str], None]) -> None:
    """Call `part` with the name of each of the four attacks of the standard version as it
    starts."""
    parts = (attack.apgd, attack.apgd_targeted, attack.fab, attack.square)
    for name, one in zip(PARTS, parts, strict=True):
        one.perturb = _announced(one.perturb, name, part)


def _announced(
    perturb: Callable[..., Tensor], name: str, part: Callable[[str], None]
) -> Callable[..., Tensor]:
    def announced(*arguments: Any) -> Tensor:
        part(name)
        return perturb(*arguments)

    return announced


def _fork_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's global generators afterwards: AutoAttack seeds them."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


class _FiniteGradients(nn.Module):
    """The model with input gradients of zero where they are not finite. In L2 the library would
    return images of NaN for such gradients and count them as broken."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            x = x.view_as(x)
            x.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0))
        z: Tensor = self.model(x)
        return z


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    pattern: ClassVar[str] = "autoattack"
    examples: ClassVar[tuple[str, ...]] = ("autoattack",)

    part: Callable[[str], None] | None = field(default=None, compare=False, repr=False)
    """Called with the name of each of PARTS as it starts."""

    def params(self, ball: Ball) -> dict[str, Any]:
        return {
            "norm": ball.norm,
            "eps": ball.eps,
            "version": "standard",
            "iterations": 100,
            "queries": 5000,
        }

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return _run(model, x, y, ball, "standard", len(x), seed, self.part)

    def reporting(self, part: Callable[[str], None]) -> Attack:
        return replace(self, part=part)

    def caveats(self, classes: int) -> list[str]:
        if classes >= 4:
            return []
        return [
            f"with {classes} classes AutoAttack ran apgd-ce, fab-t and square only: the loss of "
            "apgd-t compares four logits"
        ]

    def searches_harder(self, other: Attack, ball: Ball) -> bool:
        return other.in_ball and not isinstance(other, AutoAttack)
