"""AutoAttack (Croce & Hein 2020, arXiv 2003.01690) through the package pyautoattack, which carries
the authors' code.

`standard`: APGD-CE, targeted APGD-DLR, targeted FAB (100 iterations each) and Square (5,000
queries), each on what survived the last.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_model, untouched
from amata.errors import InputError, missing
from amata.threat import Ball, check_ball

_NORMS = {"linf": "Linf", "l2": "L2"}
Version = Literal["standard", "plus", "rand"]


def autoattack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    version: Version = "standard",
    batch_size: int = 250,
    seed: int = 0,
) -> Tensor:
    """The adversarial images AutoAttack found; samples it could not break come back unchanged."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise missing("pyautoattack", "AutoAttack", "autoattack") from None
    check_ball(ball)
    check_images(x, y)
    with untouched(model):
        classes = check_model(model, x, y)
        if classes < 4:
            raise InputError(
                "AutoAttack needs at least 4 classes (its targeted loss compares four "
                f"logits), the model has {classes}"
            )
        with _private_rng(x.device):
            attack: Any = AutoAttack(
                model,
                eps=ball.eps,
                norm=_NORMS[ball.norm],
                device=x.device,
                seed=seed,
                version=version,
            )
            # it aims at nine other classes; there are fewer
            if version == "standard" and classes < 10:
                attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = classes - 1
            x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
    return x_adv.detach()


def _private_rng(device: torch.device) -> Any:
    """AutoAttack seeds torch's global generators; the caller's are put back afterwards."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
