"""Attacks as people name them on a command line: clean, fgsm, pgd-20, pgd-50-10, cw-pgd-20,
cw-l2-100, autoattack, autoattack@1000."""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amata.attacks import autoattack, cw_l2, cw_pgd, fgsm, pgd
from amata.attacks.guard import untouched
from amata.attacks.pgd import default_step_size
from amata.errors import InputError, unknown
from amata.seeds import derive
from amata.threat import Ball

NAMES = ("clean", "fgsm", "pgd-20", "pgd-50-10", "cw-pgd-20", "cw-l2", "autoattack")


@dataclass(frozen=True)
class AttackSpec:
    """One attack with its strength; `name` is how it was asked for."""

    name: str
    kind: str
    steps: int = 0
    restarts: int = 1
    step_size: float | None = None
    c: float = 1.0
    limit: int | None = None
    """How many images it is run on, from the first on; all by default."""

    def params(self, ball: Ball) -> dict[str, Any]:
        """The exact parameters, as they are printed beside a result."""
        in_ball = {"norm": ball.norm, "eps": ball.eps}
        if self.kind in ("pgd", "cw-pgd"):
            alpha = self.step_size or default_step_size(ball, self.steps)
            loss = "ce" if self.kind == "pgd" else "margin"
            return {
                **in_ball,
                "steps": self.steps,
                "step_size": alpha,
                "restarts": self.restarts,
                "random_start": True,
                "loss": loss,
            }
        return {
            "clean": {},
            "fgsm": {
                **in_ball,
                "steps": 1,
                "step_size": ball.eps,
                "random_start": False,
                "loss": "ce",
            },
            "cw-l2": {
                "norm": "l2",
                "c": self.c,
                "steps": self.steps,
                "lr": 0.01,
                "kappa": 0.0,
                "pulled_in": True,
            },
            "autoattack": {**in_ball, "version": "standard", "iterations": 100, "queries": 5000},
        }[self.kind]

    def run(self, model: nn.Module, x: Tensor, y: Tensor, ball: Ball, seed: int) -> Tensor:
        if self.kind == "clean":
            return x
        if self.kind == "fgsm":
            return fgsm(model, x, y, ball=ball)
        if self.kind == "cw-l2":
            return cw_l2(model, x, y, c=self.c, steps=self.steps)
        if self.kind == "autoattack":
            return autoattack(model, x, y, ball=ball, batch_size=len(x), seed=seed % 2**32)
        attack = partial(
            pgd if self.kind == "pgd" else cw_pgd,
            ball=ball,
            steps=self.steps,
            step_size=self.step_size,
        )
        if self.restarts == 1:
            return attack(model, x, y, seed=seed)
        found, left = x.clone(), torch.arange(len(x), device=x.device)
        for restart in range(self.restarts):  # on those that the restarts before have not fooled
            found[left] = attack(model, x[left], y[left], seed=derive(seed, restart))
            with untouched(model), torch.no_grad():
                left = left[model(found[left]).argmax(1) == y[left]]
            if len(left) == 0:
                break
        return found

    def weaker_than(self, other: "AttackSpec", ball: Ball) -> bool:
        """Whether `other` searches the same ball harder, so that it should never leave more images
        standing."""
        if self.limit != other.limit:
            return False  # judged on other images
        if self.kind == "clean":
            return other.kind != "clean"
        if self.kind == "cw-l2" or other.kind == "cw-l2":
            return False
        if other.kind == "autoattack":
            return self.kind != "autoattack"
        if self.kind == "fgsm":
            reach = other.steps * (other.step_size or default_step_size(ball, other.steps))
            return other.kind == "pgd" and other.steps > 1 and reach >= ball.eps
        harder = (other.steps, other.restarts) != (self.steps, self.restarts)
        return (
            other.kind == self.kind
            and other.steps >= self.steps
            and other.restarts >= self.restarts
            and harder
        )


def parse_attack(text: str, *, step_size: float | None = None, c: float = 1.0) -> AttackSpec:
    """The attack that `text` names: pgd-K or pgd-K-R for K steps and R restarts, cw-l2 or cw-l2-N
    for N iterations. @N behind it means the first N images only, for attacks that take long."""
    name = text.strip()
    if match := re.fullmatch(r"(.+)@([1-9]\d*)", name):
        return replace(
            parse_attack(match[1], step_size=step_size, c=c), name=name, limit=int(match[2])
        )
    if name in ("clean", "fgsm", "autoattack"):
        return AttackSpec(name, name)
    if match := re.fullmatch(r"cw-l2(?:-([1-9]\d*))?", name):
        return AttackSpec(name, "cw-l2", steps=int(match[1] or 100), c=c)
    if match := re.fullmatch(r"(pgd|cw-pgd)-([1-9]\d*)(?:-([1-9]\d*))?", name):
        return AttackSpec(
            name, match[1], steps=int(match[2]), restarts=int(match[3] or 1), step_size=step_size
        )
    if re.fullmatch(r"(pgd|cw-pgd|cw-l2)(-\d+){1,2}", name) and "0" in name.split("-"):
        raise InputError(
            f"attack {name!r}: the number of steps, and of restarts, must be at least 1, as in "
            "pgd-20 or pgd-50-10"
        )
    raise unknown("attack", name, NAMES)
