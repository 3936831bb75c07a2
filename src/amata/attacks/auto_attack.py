"""AutoAttack (Croce & Hein 2020, arXiv 2003.01690): four attacks in a row, each on the images that
the previous ones did not break.

The `standard` version runs APGD-CE, targeted APGD-DLR and targeted FAB (100 iterations each), then
Square (5,000 queries). `plus` adds APGD-DLR, untargeted FAB and restarts. `rand` is for models with
random outputs: APGD-CE and APGD-DLR on the mean of 20 gradients.

The DLR loss compares three logits, its targeted form four. Models with fewer classes are attacked
by the others alone. Targeted attacks have nine target classes, or all but one of fewer.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from amata import seeds
from amata.attacks.apgd import apgd, dlr, targeted_dlr, untargeted_ce
from amata.attacks.base import Attack, OnPart
from amata.attacks.checks import check_images, check_model, check_module
from amata.attacks.fab import fab
from amata.attacks.preserve import untouched
from amata.attacks.randomness import draw_seed
from amata.attacks.square import square
from amata.attacks.survivors import Found, judge_of
from amata.errors import InputError
from amata.losses import correct
from amata.quantity import Count, choice, whole
from amata.threat import Ball, check_ball

_MIN_CLASSES = {"apgd-t": 4, "apgd-dlr": 3}
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
"""Of the standard version."""
ITERATIONS = 100
QUERIES = 5000
MAX_TARGETS = 9
Version = Literal["standard", "plus", "rand"]


class _Plan(NamedTuple):
    parts: tuple[str, ...]
    restarts: int = 1
    """Of the untargeted attacks with gradients."""
    repeats: int = 1
    """Gradients that are averaged."""


_PLANS = {
    "standard": _Plan(PARTS),
    "plus": _Plan(("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"), restarts=5),
    "rand": _Plan(("apgd-ce", "apgd-dlr"), repeats=20),
}


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
    return _run(model, x, y, ball, _PLANS[version], batch_size, draw_seed(generator))


def _run(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    plan: _Plan,
    batch_size: int,
    seed: int,
    starts: OnPart = lambda part, left: None,
) -> Tensor:
    """Every attack of the plan on all images that are left, in batches."""
    check_module(model)
    check_ball(ball)
    check_images(x, y)
    x = x.detach().clone()
    with untouched(model):
        classes = check_model(model, x, y)
        if classes < 2:
            raise InputError("AutoAttack needs at least 2 classes, and the model has 1")
        with torch.no_grad():
            z = torch.cat([model(part) for part in x.split(batch_size)])
            judge = judge_of(model)
            own = z if judge is None else torch.cat([judge(part) for part in x.split(batch_size)])
        x_adv, robust = x.clone(), correct(own, y)
        ranked = z.argsort(1, descending=True)[:, 1 : 1 + min(MAX_TARGETS, classes - 1)]
        for name in plan.parts:
            if classes < (fewest := _MIN_CLASSES.get(name, 2)):
                if len(plan.parts) > 1:
                    continue  # its loss compares more logits
                raise InputError(
                    f"{name} needs a model with {fewest} classes or more, this one has {classes}; "
                    "leave it out, as autoattack does"
                )
            left = robust.nonzero().squeeze(1)
            starts(name, len(left))
            if len(left) == 0:
                continue
            rng = seeds.generator(seed, name, device=x.device)
            for rows in left.split(batch_size):
                found = Found(x[rows], min(batch_size, len(x)), judge)
                _attack(model, name, plan, x[rows], y[rows], ranked[rows].T, ball, rng, found)
                x_adv[rows], robust[rows] = found.x_adv, ~found.broken
    return x_adv


def _attack(
    model: nn.Module,
    name: str,
    plan: _Plan,
    x: Tensor,
    y: Tensor,
    targets: Tensor,
    ball: Ball,
    rng: torch.Generator,
    found: Found,
) -> None:
    """One of the attacks on one batch."""
    common: Any = {"ball": ball, "rng": rng, "found": found}
    run_apgd = partial(apgd, model, x, y, steps=ITERATIONS, **common)
    run_fab = partial(fab, model, x, y, steps=ITERATIONS, **common)
    if name == "square":
        square(model, x, y, queries=QUERIES, **common)
    elif name == "apgd-t":
        for target in targets:
            run_apgd(objective=targeted_dlr, targets=target)
    elif name == "fab-t":
        for target in targets:
            run_fab(targets=target)
    elif name == "fab":
        for restart in range(plan.restarts):
            run_fab(random_start=restart > 0)
    else:
        loss = untargeted_ce if name == "apgd-ce" else dlr
        for _ in range(plan.restarts):
            run_apgd(objective=loss, repeats=plan.repeats)


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    pattern: ClassVar[str] = "autoattack"
    examples: ClassVar[tuple[str, ...]] = ("autoattack",)
    gathers: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = PARTS

    batch: Count | None = None
    """How many images it attacks at a time; None: all."""
    starts: OnPart = field(default=lambda part, left: None, compare=False, repr=False)
    """Called as each of the parts starts."""

    def params(self, ball: Ball) -> dict[str, Any]:
        return {
            "norm": ball.norm,
            "eps": ball.eps,
            "version": "standard",
            "iterations": ITERATIONS,
            "queries": QUERIES,
        }

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return _run(model, x, y, ball, _PLANS["standard"], self.batch or len(x), seed, self.starts)

    def in_batches(self, size: int) -> Attack:
        return replace(self, batch=size)

    def reporting(self, starts: OnPart) -> Attack:
        return replace(self, starts=starts)

    def caveats(self, classes: int) -> list[str]:
        if classes >= 4:
            return []
        return [
            f"with {classes} classes AutoAttack ran apgd-ce, fab-t and square only: the loss of "
            "apgd-t compares four logits"
        ]

    def searches_harder(self, other: Attack, ball: Ball) -> bool:
        return other.in_ball and not isinstance(other, AutoAttack)


@dataclass(frozen=True, kw_only=True)
class AutoAttackPart(Attack):
    """One of the four attacks alone."""

    pattern: ClassVar[str] = "|".join(PARTS)
    examples: ClassVar[tuple[str, ...]] = PARTS
    gathers: ClassVar[bool] = True

    batch: Count | None = None

    @property
    def part(self) -> str:
        return self.name.partition("@")[0]

    def params(self, ball: Ball) -> dict[str, Any]:
        count = {"queries": QUERIES} if self.part == "square" else {"iterations": ITERATIONS}
        return {"norm": ball.norm, "eps": ball.eps, **count}

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, ball: Ball, seed: int) -> Tensor:
        return _run(model, x, y, ball, _Plan((self.part,)), self.batch or len(x), seed)

    def in_batches(self, size: int) -> Attack:
        return replace(self, batch=size)
