"""Accuracy on corrupted test images: CIFAR-10-C and others of its form.

These are other images, not an attack on the given ones. So they are evaluated beside the attacks,
under the name `corruptions`; `corruptions@N` takes the first N images of each severity.
"""

import math
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amata.attacks.preserve import untouched
from amata.data.corruptions import SEVERITIES, STANDARD, Corruptions
from amata.engine import no_cudnn_benchmark, tf32
from amata.evaluation import SINGLE_PROCESS, Result, Shard, wilson
from amata.losses import correct, finite

NAME = re.compile(r"corruptions(?:@([1-9]\d{0,8}))?")


def is_attack(name: str) -> bool:
    """Whether an evaluation is an attack, rather than one on corrupted images."""
    return NAME.fullmatch(name.strip()) is None


def evaluate_corruptions(
    model: nn.Module,
    images: Corruptions,
    *,
    name: str = "corruptions",
    batch_size: int = 256,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    part: Shard = SINGLE_PROCESS,
    precision: str = "auto",
) -> Result:
    """The mean accuracy over the standard corruptions and all severities. `params` holds the
    accuracy under each of them; the extra corruptions do not count in the mean.

    All corruptions have the same N images. So the interval of the mean is over images: each counts
    with the share of corruptions and severities at which it is classified correctly.
    """
    match = NAME.fullmatch(name.strip())
    own = int(match[1]) if match and match[1] else None
    n = min(len(images), limit or len(images), own or len(images))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    labels = torch.from_numpy(images.labels[:n]).to(device)
    total, done = len(images.files) * SEVERITIES, 0
    started, hits, bad = time.perf_counter(), torch.zeros(n, dtype=torch.long), 0
    table: dict[str, list[int]] = {corruption: [] for corruption in images.files}
    with tf32(precision != "fp32"), no_cudnn_benchmark(), untouched(model), torch.no_grad():
        for corruption, counts in table.items():
            for severity in range(1, SEVERITIES + 1):
                right = torch.zeros(n, dtype=torch.long)
                odd = 0
                x = images.images(corruption, severity)
                for start in range(part.rank * batch_size, n, part.size * batch_size):
                    rows = slice(start, min(start + batch_size, n))
                    z = model(_to_floats(x[rows], device))
                    right[rows] = correct(z, labels[rows]).long().cpu()
                    odd += int((~finite(z)).sum())
                count, odd = (int(v) for v in part.sum([int(right.sum()), odd]))
                counts.append(count)
                if corruption in STANDARD:
                    hits += right
                    bad += odd
                done += 1
                if progress:
                    progress(name, n * done // total, n)
    conditions = len(STANDARD) * SEVERITIES
    sums = part.sum([int(hits.sum()), int(hits.square().sum()), time.perf_counter() - started])
    accuracy = sums[0] / (n * conditions)
    return Result(
        accuracy,
        n,
        *_interval(accuracy, sums[1] / conditions**2, n),
        0,
        round(sums[2] / part.size, 3),
        {
            "version": f"{len(STANDARD)} corruptions, severity 1 to {SEVERITIES}",
            "by_corruption": {key: _row(key, counts, n) for key, counts in table.items()},
        },
        [
            f"the logits of {bad} of {n * conditions} images are not finite; these images count as "
            "wrong"
        ]
        if bad
        else [],
        bad,
    )


def _to_floats(x: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).to(device).float() / 255


def _interval(mean: float, squares: float, n: int) -> tuple[float, float]:
    """The 95% interval of the mean of n shares with this sum of squares."""
    variance = squares / n - mean**2
    if variance <= 1e-12:  # all images are alike
        return wilson(round(mean * n), n)
    half = 1.959964 * math.sqrt(variance / n)
    return max(0.0, mean - half), min(1.0, mean + half)


def _row(corruption: str, counts: list[int], n: int) -> dict[str, Any]:
    """The accuracies of a corruption, and whether they count in the mean."""
    severities = []
    for count in counts:
        low, high = wilson(count, n)
        severities.append({"accuracy": count / n, "n": n, "low": low, "high": high})
    return {
        "counted": corruption in STANDARD,
        "accuracy": sum(counts) / (n * len(counts)),
        "severities": severities,
    }
