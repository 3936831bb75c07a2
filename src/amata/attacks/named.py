"""The table of attacks, and the parser of their names."""

import re
from dataclasses import replace

from amata.attacks.auto_attack import AutoAttack, AutoAttackPart
from amata.attacks.base import Attack
from amata.attacks.carlini_wagner_l2 import CarliniWagnerL2
from amata.attacks.clean import Clean
from amata.attacks.fast_gradient_sign import FGSM
from amata.attacks.margin_pgd import MarginPGD
from amata.attacks.projected_gradient_descent import PGD
from amata.errors import InputError, nearest, shorten

ATTACKS: tuple[type[Attack], ...] = (
    Clean,
    FGSM,
    PGD,
    MarginPGD,
    CarliniWagnerL2,
    AutoAttack,
    AutoAttackPart,
)


def parse_attack(text: str, *, step_size: float | None = None, c: float = 1.0) -> Attack:
    """The attack called `text`.

    `pgd-K` and `pgd-K-R` mean K steps and R restarts, `cw-l2-N` means N iterations. `NAME@N`
    attacks only the first N images. `step_size` is for the PGD attacks, `c` for cw-l2.
    """
    if not isinstance(text, str):
        raise InputError(f"attack = {text!r} must be a name, such as 'pgd-20'")
    name = text.strip()
    base, at, limit = name.partition("@")
    if at:
        if not re.fullmatch(r"[1-9]\d{0,8}", limit):
            raise InputError(
                f"attack {shorten(name, 60)!r}: after @ comes a number of images, as in pgd-20@1000"
            )
        attack = parse_attack(base, step_size=step_size, c=c)
        return replace(attack, name=name, limit=int(limit))
    for kind in ATTACKS:
        if parsed := kind.parse(name, {"step_size": step_size, "c": c}):
            return parsed
    if name == "corruptions":
        raise InputError(
            "corruptions are other images, not an attack on these: `amata eval RUN --attacks "
            "corruptions` evaluates them; in Python, amata.evaluation.corruptions"
        )
    examples = [example for kind in ATTACKS for example in kind.examples]
    alike = re.sub(r"\d+", "20", name)  # pgd-5 is as near to pgd-20 as pgd-20 itself
    raise InputError(f"unknown attack {name!r}; {nearest(alike, examples)}")
