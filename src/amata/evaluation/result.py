"""The accuracy under one attack: interval, cost, parameters, and the outcome of every image."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass
class Result:
    """The accuracy of a model under one attack, with a 95% Wilson interval over the n images."""

    accuracy: float
    n: int
    low: float
    high: float
    grad_evals: int
    seconds: float
    params: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    non_finite: int = 0
    """Images with logits that are NaN or infinite. They count as wrong."""
    outcomes: list[bool] | None = field(default=None, repr=False)
    """Whether each image is classified correctly, in order. None if several processes evaluated
    batches of unequal sizes, whose order is unknown."""
    per_class: list[tuple[int, int]] = field(default_factory=list, repr=False)
    """For each class: its images that are classified correctly, and all of its images."""
    parts: dict[str, float] = field(default_factory=dict)
    """AutoAttack: the accuracy after each of its attacks, which follow one another."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the outcomes as packed bits in base64."""
        bits = None if self.outcomes is None else pack(self.outcomes)
        return asdict(self) | {"outcomes": bits, "per_class": [list(c) for c in self.per_class]}


def grouped_warnings(warnings: Mapping[str, Sequence[str]]) -> list[str]:
    """The warnings per attack, each once after the attacks that it concerns.

    >>> grouped_warnings({"clean": ["untrained"], "fgsm": ["untrained", "masked"]})
    ['clean, fgsm: untrained', 'fgsm: masked']
    """
    attacks: dict[str, list[str]] = {}
    for attack, texts in warnings.items():
        for text in texts:
            attacks.setdefault(text, []).append(attack)
    return [f"{', '.join(names)}: {text}" for text, names in attacks.items()]


def wilson(correct: int, n: int) -> tuple[float, float]:
    """The 95% Wilson score interval of a proportion. It stays in [0, 1] and is valid at 0 and 1."""
    z2 = 1.959964**2
    p = correct / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def class_counts(
    outcomes: Sequence[bool], labels: Sequence[int], classes: int
) -> list[tuple[int, int]]:
    """Per class, the correct images and all images. Labels beyond the outcomes are ignored."""
    y, right = np.asarray(labels[: len(outcomes)], dtype=np.int64), np.asarray(outcomes, dtype=bool)
    correct, all_ = (np.bincount(part, minlength=classes).tolist() for part in (y[right], y))
    return list(zip(correct, all_, strict=True))


def pack(outcomes: Sequence[bool]) -> str:
    """Booleans as bits, the first one highest, in base64.

    >>> unpack(pack([True, False, True]), 3)
    [True, False, True]
    """
    return base64.b64encode(np.packbits(np.asarray(outcomes, dtype=bool)).tobytes()).decode()


def unpack(text: str, n: int) -> list[bool]:
    """The n booleans that `pack` wrote."""
    packed = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    bits: list[bool] = np.unpackbits(packed, count=n).astype(bool).tolist()
    return bits
