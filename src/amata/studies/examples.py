"""Images for a gallery: clean, adversarial, and what the model predicts for both."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amata.attacks.checks import are_probabilities
from amata.data import ImageSet
from amata.evaluation import Attacked

CANDIDATES = 64
"""Images that a gallery is chosen from, evenly spaced over the data."""
SHOWN = 12


@dataclass(frozen=True, eq=False)
class Example:
    """One image and the attack on it."""

    index: int
    label: int
    clean_prediction: int
    clean_probability: float
    x: np.ndarray[Any, Any]
    """The clean image, of shape (C, H, W), in [0, 1]."""
    attack: str = ""
    prediction: int = 0
    probability: float = 0.0
    """Of the adversarial image."""
    x_adv: np.ndarray[Any, Any] | None = None
    survives: bool = True
    """Whether every attack so far left the prediction correct."""

    def to_dict(self) -> dict[str, Any]:
        """Without the pixels."""
        return {k: v for k, v in vars(self).items() if k not in ("x", "x_adv")}


class Collector:
    """Collects examples while a model is evaluated: pass its `add` as `examine`.

    Of an image that is broken, the first adversarial image that broke it is kept; otherwise the
    first attempt.
    """

    def __init__(self, data: Any, limit: int | None) -> None:
        total = _length(data)
        if total is None:
            self.wanted = set(range(CANDIDATES))
        else:
            total = min(total, limit or total)
            self.wanted = {i * total // CANDIDATES for i in range(CANDIDATES)}
        self.examples: dict[int, Example] = {}
        self.labels: dict[int, list[int]] = {}
        self.probabilities = True
        """Whether all outputs look like those of a softmax."""

    def add(self, batch: Attacked) -> None:
        if batch.first not in self.labels:
            self.labels[batch.first] = batch.y.tolist()
            self.probabilities = self.probabilities and are_probabilities(batch.z)
        rows = [i - batch.first for i in sorted(self.wanted)]
        rows = [i for i in rows if 0 <= i < len(batch.y)]
        if batch.x.dim() != 4 or not rows or not batch.attack.in_ball:
            return
        if not batch.attack.perturbs:
            for row, example in zip(rows, self._clean(batch, rows), strict=True):
                self.examples[batch.first + row] = example
            return
        taken = [row for row in rows if self._takes(batch, row)]
        if not taken:
            return
        predictions = _predict(batch.z_adv[taken])
        for row, image, (label, p) in zip(
            taken, _pixels(batch.x_adv, taken), predictions, strict=True
        ):
            index = batch.first + row
            known = self.examples.get(index) or next(iter(self._clean(batch, [row])))
            self.examples[index] = replace(
                known,
                attack=batch.attack.name,
                prediction=label,
                probability=p,
                x_adv=image,
                survives=batch.outcomes[row],
            )

    def _takes(self, batch: Attacked, row: int) -> bool:
        known = self.examples.get(batch.first + row)
        return known is None or known.x_adv is None or (known.survives and not batch.outcomes[row])

    def _clean(self, batch: Attacked, rows: list[int]) -> Iterable[Example]:
        predictions = _predict(batch.z[rows])
        for row, image, (label, p) in zip(rows, _pixels(batch.x, rows), predictions, strict=True):
            y = self.labels[batch.first][row]
            yield Example(batch.first + row, y, label, p, image, survives=label == y)

    def chosen(self) -> tuple[Example, ...]:
        """A mix of images that an attack broke and of images that survive, in order. Images that
        are wrong without an attack come last, if there are too few others."""
        attacked = [e for _, e in sorted(self.examples.items()) if e.x_adv is not None]
        right = [e for e in attacked if e.clean_prediction == e.label]
        broken, safe = ([e for e in right if e.survives is keep] for keep in (False, True))
        share = max(SHOWN - SHOWN // 2, SHOWN - len(safe))
        picked = _spread(broken, share)
        picked += _spread(safe, SHOWN - len(picked))
        wrong = [e for e in attacked if e.clean_prediction != e.label]
        return (*picked, *_spread(wrong, SHOWN - len(picked)))

    def all_labels(self) -> list[int]:
        return [label for _, part in sorted(self.labels.items()) for label in part]


def _length(data: Any) -> int | None:
    if isinstance(data, ImageSet):
        return len(data)
    pair = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
    return len(data[0]) if pair else None


def _spread(examples: list[Example], count: int) -> list[Example]:
    """At most `count` of them, evenly spaced: data may be sorted by class."""
    count = min(count, len(examples))
    return [examples[i * len(examples) // count] for i in range(count)]


def _predict(z: Tensor) -> list[tuple[int, float]]:
    """Predicted classes with their probabilities."""
    probability, label = torch.softmax(z.detach().float(), 1).max(1)
    return list(zip(label.tolist(), torch.nan_to_num(probability).tolist(), strict=True))


def _pixels(x: Tensor, rows: list[int]) -> np.ndarray[Any, Any]:
    return x[rows].detach().float().cpu().numpy()
