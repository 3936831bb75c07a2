"""Losses of logits z and labels y, one value per sample (no reduction).

Attacks ascend them, training descends them. `correct` is what accuracy counts.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def as_logits(output: Any) -> Any:
    """The logits in a model's output: of an object with `.logits` or a dict with that key, as
    Hugging Face's models give. Other outputs as they are."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def correct(z: Tensor, y: Tensor) -> Tensor:
    """Whether each sample is classified correctly. Logits that are not finite are wrong: argmax
    would take NaN for a prediction."""
    return (z.argmax(1) == y) & finite(z)


def finite(z: Tensor) -> Tensor:
    """Whether all logits of each sample are finite."""
    return z.isfinite().all(1)


def ce(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy: -log softmax(z)_y."""
    return F.cross_entropy(z, y, reduction="none")


@cache  # one function for each value: an engine compiles every function that it is given
def smooth_ce(smoothing: float) -> Loss:
    """Cross-entropy with label smoothing; `ce` itself at 0."""
    if smoothing == 0:
        return ce

    def smoothed(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)

    return smoothed


def margin(z: Tensor, y: Tensor) -> Tensor:
    """Carlini and Wagner's margin max_{i != y} z_i - z_y: positive where the prediction is
    wrong."""
    others = z.masked_fill(F.one_hot(y, z.shape[1]).bool(), -torch.inf)
    return others.amax(1) - z.gather(1, y[:, None]).squeeze(1)


def kl(z_adv: Tensor, z: Tensor) -> Tensor:
    """KL(softmax(z) || softmax(z_adv)), the divergence of TRADES."""
    return F.kl_div(
        F.log_softmax(z_adv, 1), F.log_softmax(z, 1), reduction="none", log_target=True
    ).sum(1)
