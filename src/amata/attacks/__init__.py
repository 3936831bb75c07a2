"""Attacks, as plain functions and as named objects.

The functions `(model, x, y, ...) -> x_adv` suit any training loop. They take any `nn.Module` that
maps images in [0, 1] to logits, and leave it unchanged.

An `Attack` is a frozen dataclass: a name such as `pgd-20`, its parameters, and a call. Evaluation
uses these; `parse_attack` turns a name into one.
"""

from amata.attacks.auto_attack import autoattack
from amata.attacks.base import Attack
from amata.attacks.carlini_wagner_l2 import cw_l2
from amata.attacks.fast_gradient_sign import fgsm
from amata.attacks.margin_pgd import cw_pgd
from amata.attacks.named import ATTACKS, parse_attack
from amata.attacks.projected_gradient_descent import pgd

__all__ = ["ATTACKS", "Attack", "autoattack", "cw_l2", "cw_pgd", "fgsm", "parse_attack", "pgd"]
