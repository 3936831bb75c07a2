"""Losses of logits z and labels y, one value per sample (no reduction).

Attacks ascend them, training descends them. `correct` is what accuracy counts.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amata.polar import polar

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


def runner_up(z: Tensor, y: Tensor) -> Tensor:
    """-log(1 - max_{k != y} softmax(z)_k), the second term of MART's boosted cross-entropy.

    It is computed as log sum_j exp(z_j) - log sum_{j != k} exp(z_j), which stays finite where the
    probability rounds to 1."""
    best_other = z.scatter(1, y[:, None], -torch.inf).argmax(1, keepdim=True)
    return z.logsumexp(1) - z.scatter(1, best_other, -torch.inf).logsumexp(1)


def nuclear(d: Tensor) -> Tensor:
    """Each row's share of the nuclear norm of the matrix d: they add up to the sum of its singular
    values.

    The norm is the largest <d, W> over matrices W whose singular values are at most 1, and the
    polar factor of d attains it. So row i's share is <d_i, W_i> with the polar factor W held
    constant, and the gradient of their sum is W, the norm's own. Where singular values are 0 it is
    a subgradient."""
    return (d * polar(d)).sum(1)
