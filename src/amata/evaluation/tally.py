"""What an evaluation has done so far. It can be stored, and a later call continues there."""

import base64
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from amata.attacks import Attack
from amata.evaluation.batches import Shard
from amata.evaluation.masking import ModelStats
from amata.evaluation.result import Result, class_counts, pack, unpack, wilson


@dataclass(frozen=True)
class Tally:
    """The counts of one attack so far, in this process."""

    batches: int = 0
    images: int = 0
    non_finite: int = 0
    """Images with logits that are not finite."""
    bad_gradients: int = 0
    """Gradient evaluations that are not finite."""
    grad_evals: int = 0
    seconds: float = 0.0
    outcomes: tuple[bool, ...] = ()
    """Whether each image is classified correctly, in order."""
    parts: dict[str, int] = field(default_factory=dict)
    """Of an attack with parts: the images that are still correct after each of them."""

    def plus(
        self, outcomes: list[bool], bad: int, bad_gradients: int, grad_evals: int, seconds: float
    ) -> "Tally":
        """With another batch."""
        return Tally(
            self.batches + 1,
            self.images + len(outcomes),
            self.non_finite + bad,
            self.bad_gradients + bad_gradients,
            self.grad_evals + grad_evals,
            self.seconds + seconds,
            (*self.outcomes, *outcomes),
            self.parts,
        )

    def plus_parts(self, parts: dict[str, int]) -> "Tally":
        """With the parts on more images."""
        return replace(self, parts={n: self.parts.get(n, 0) + left for n, left in parts.items()})

    def first(self, images: int) -> "Tally":
        """Those of the first images. What is not known per image is left as it is, or left out."""
        if self.images <= images:
            return self
        return replace(self, images=images, outcomes=self.outcomes[:images], parts={})

    def seconds_left(self, goal: int | None) -> float | None:
        """The time for the rest of `goal` images, at the speed so far."""
        if goal is None or not self.images:
            return None
        return self.seconds / self.images * max(0, goal - self.images)

    def result(
        self,
        attack: Attack,
        params: dict[str, Any],
        part: Shard,
        batch_size: int,
        per_class: list[tuple[int, int]],
    ) -> Result:
        """The result over all processes. Its time is their mean."""
        counts = [sum(self.outcomes), self.images, self.non_finite, self.bad_gradients]
        *totals, seconds = part.sum([*counts, self.grad_evals, self.seconds])
        correct, images, non_finite, bad_gradients, grad_evals = map(int, totals)
        # Few classes leave some parts out, and a process without images all of them.
        ran = part.sum([float(name in self.parts) for name in attack.parts])
        left = part.sum([float(self.parts.get(name, 0)) for name in attack.parts])
        warnings = []
        if non_finite:
            warnings.append(
                f"the logits of {non_finite} of {images} images are not finite; these images count "
                "as wrong"
            )
        if bad_gradients:
            warnings.append(
                f"{bad_gradients / grad_evals:.1%} of the input gradients of {attack.name} are not "
                "finite: it cannot attack these images, so this accuracy is only an upper bound"
            )
        return Result(
            correct / images,
            images,
            *wilson(correct, images),
            grad_evals,
            round(seconds / part.size, 3),
            params,
            warnings,
            non_finite,
            self._all_outcomes(images, part, batch_size),
            per_class,
            {n: left[i] / images for i, n in enumerate(attack.parts) if ran[i]},
        )

    def _all_outcomes(self, images: int, part: Shard, batch_size: int) -> list[bool] | None:
        """The outcomes of all processes in the order of the images, if the batches have their
        places in it: all but the last have `batch_size` images."""
        if part.size == 1:
            return list(self.outcomes)
        row, placed = [0.0] * images, 0
        for number, right in enumerate(self.outcomes):
            batch, offset = divmod(number, batch_size)
            place = (part.rank + batch * part.size) * batch_size + offset
            if place < images:
                row[place], placed = float(right), placed + 1
        *row, found = part.sum([*row, placed])
        return [value > 0 for value in row] if found == images else None


@dataclass(frozen=True)
class State:
    """An evaluation so far: the labels and the model's statistics of the first `batches` batches,
    and one tally per attack."""

    batches: int = 0
    classes: int = 0
    total: int | None = None
    """The number of images, once all of them were read."""
    labels: tuple[int, ...] = ()
    stats: ModelStats = field(default_factory=ModelStats)
    tallies: dict[str, Tally] = field(default_factory=dict)

    def tally(self, attack: Attack) -> Tally:
        return self.tallies.get(attack.name, Tally())

    def has(self, attack: Attack) -> bool:
        """Whether the attack has met all of its images."""
        if self.total is None:
            return False
        return self.tally(attack).images == min(attack.limit or self.total, self.total)

    def finished(self, attacks: Iterable[Attack]) -> int:
        """How many images, from the first on, have met all attacks that take them."""
        met = [(self.tally(attack).images, attack.limit) for attack in attacks]
        return min((n for n, limit in met if n != limit), default=max(n for n, _ in met))

    def first(self, images: int) -> "State":
        """The evaluation of the first images alone. Sums over images are left as they are."""
        tallies = {name: tally.first(images) for name, tally in self.tallies.items()}
        return replace(self, total=images, labels=self.labels[:images], tallies=tallies)

    def with_tally(self, attack: Attack, tally: Tally) -> "State":
        return replace(self, tallies={**self.tallies, attack.name: tally})

    def per_class(self, attack: Attack, part: Shard) -> list[tuple[int, int]]:
        """Over all processes, which agree on the number of classes."""
        own = class_counts(self.tally(attack).outcomes, self.labels, self.classes)
        flat = [int(v) for v in part.sum([float(value) for pair in own for value in pair])]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "batches": self.batches,
            "classes": self.classes,
            "total": self.total,
            "labels": base64.b64encode(np.asarray(self.labels, dtype="<u4").tobytes()).decode(),
            "stats": asdict(self.stats),
            "tallies": {
                name: {**_numbers(tally), "outcomes": pack(tally.outcomes)}
                for name, tally in self.tallies.items()
            },
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "State":
        """What `to_dict` wrote."""
        labels = np.frombuffer(base64.b64decode(record["labels"]), dtype="<u4").tolist()
        tallies = {
            name: Tally(**{**row, "outcomes": tuple(unpack(row["outcomes"], row["images"]))})
            for name, row in record["tallies"].items()
        }
        stats = ModelStats(**record["stats"])
        return cls(
            record["batches"], record["classes"], record["total"], tuple(labels), stats, tallies
        )


def _numbers(tally: Tally) -> dict[str, Any]:
    return {f.name: getattr(tally, f.name) for f in fields(tally) if f.name != "outcomes"}


class Store(Protocol):
    """Where an evaluation is kept while it runs, as `State.to_dict` writes it."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, state: dict[str, Any]) -> None: ...
