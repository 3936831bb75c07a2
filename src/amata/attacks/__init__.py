"""Attacks as plain functions (model, x, y) -> x_adv, for evaluation and for anybody's training
loop.

They take any `nn.Module` that maps images in [0, 1] to logits, and leave it exactly as they found
it.
"""

from amata.attacks.autoattack import autoattack
from amata.attacks.cw import cw_l2
from amata.attacks.pgd import cw_pgd, fgsm, pgd

__all__ = ["autoattack", "cw_l2", "cw_pgd", "fgsm", "pgd"]
