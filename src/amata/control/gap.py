"""C as a value: the gap between a control and the best one tried, in two terms.

H has two terms, |g|^2 and gamma times the price. They are kept apart for every candidate, so C
follows for any gamma without measuring again. C itself is a sum of two terms: what the best control
gains in |g|^2, and what u costs more than it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from amata.schedules import Control


class Candidate(NamedTuple):
    """A control, with the two terms of its Hamiltonian."""

    control: Control[float]
    gains: list[float]
    """|g|^2 on each probe batch, or <g, g_z> with a fixed z."""
    price: float
    """R(u) at gamma = 1, averaged over the batches."""

    def values(self, gamma: float) -> list[float]:
        """The Hamiltonian on each probe batch."""
        return [gain - gamma * self.price for gain in self.gains]

    def mean(self, gamma: float) -> float:
        return mean(self.values(gamma))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Criterion:
    """C of one control at one state of the network, over several probe batches."""

    gamma: float
    tried: list[Candidate]
    """All controls that were measured: u comes first."""
    fosc: float
    """The mean FOSC of the inner maximisation under u, for comparison. It ignores [0, 1]."""
    feasible_gap: float
    """The mean feasible gap, which is at most FOSC: only moves in [0, 1] count."""

    def at(self, gamma: float) -> "Criterion":
        """The criterion at another gamma, from the same measurements."""
        return replace(self, gamma=gamma)

    @property
    def control(self) -> Control[float]:
        return self.tried[0].control

    @cached_property
    def _own(self) -> list[float]:
        return self.tried[0].values(self.gamma)

    @cached_property
    def _best(self) -> list[tuple[float, Candidate]]:
        """The highest Hamiltonian of each batch, and the candidate that reaches it."""
        values = [t.values(self.gamma) for t in self.tried]
        tops = (max(range(len(values)), key=lambda i: values[i][b]) for b in range(len(self._own)))
        return [(values[top][b], self.tried[top]) for b, top in enumerate(tops)]

    @property
    def per_batch(self) -> list[float]:
        return [high - own for (high, _), own in zip(self._best, self._own, strict=True)]

    @property
    def c(self) -> float:
        return mean(self.per_batch)

    @property
    def c_stderr(self) -> float | None:
        return standard_error(self.per_batch)

    @property
    def c_price(self) -> float:
        """The price term of C: gamma times what u costs more than the best control of a batch."""
        return self.gamma * mean([self.tried[0].price - best.price for _, best in self._best])

    @property
    def c_gain(self) -> float:
        """The gradient term of C: how far |g|^2 of u is below that of the best control."""
        own = self.tried[0].gains
        return mean([best.gains[b] - own[b] for b, (_, best) in enumerate(self._best)])

    @property
    def hamiltonian(self) -> float:
        """H(u), averaged over the batches."""
        return mean(self._own)

    @property
    def best_hamiltonian(self) -> float:
        """max_v H(v), averaged over the batches."""
        return mean([high for high, _ in self._best])

    @cached_property
    def _best_mean(self) -> Candidate:
        return max(self.tried, key=lambda t: t.mean(self.gamma))

    @property
    def argmax(self) -> Control[float]:
        """The control with the highest average Hamiltonian."""
        return self._best_mean.control

    @property
    def of_means(self) -> float:
        """The criterion of the averages, max_v mean H(v) - mean H(u): less biased than a maximum
        for each batch."""
        return self._best_mean.mean(self.gamma) - self.hamiltonian

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.control.steps,
            "step_size": self.control.step_size,
            "c": self.c,
            "c_stderr": self.c_stderr,
            "c_of_means": self.of_means,
            "c_gain": self.c_gain,
            "c_price": self.c_price,
            "hamiltonian": self.hamiltonian,
            "best_hamiltonian": self.best_hamiltonian,
            "best_steps": self.argmax.steps,
            "best_step_size": self.argmax.step_size,
            "fosc": self.fosc,
            "feasible_gap": self.feasible_gap,
            "per_batch": self.per_batch,
            "tried": {
                "steps": [t.control.steps for t in self.tried],
                "step_size": [t.control.step_size for t in self.tried],
                "price": [t.price for t in self.tried],
                "gain": [t.gains for t in self.tried],
            },
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], gamma: float) -> "Criterion":
        """What `to_dict` wrote, at any gamma."""
        columns = row["tried"]
        controls = map(Control, columns["steps"], columns["step_size"])
        tried = zip(controls, columns["gain"], columns["price"], strict=True)
        candidates = [Candidate(*candidate) for candidate in tried]
        return cls(gamma, candidates, row["fosc"], row["feasible_gap"])


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


class StrategyCriterion(NamedTuple):
    """C of a whole schedule: the mean over its epochs and the probe batches, with the standard
    error over the batches."""

    c: float
    c_stderr: float | None
    c_of_means: float


def strategy(per_batch: Sequence[Sequence[float]], of_means: Sequence[float]) -> StrategyCriterion:
    """The criterion of a schedule from `per_batch` and `of_means` of its epochs. Epochs share their
    probe batches, so the standard error is over batches."""
    means = [mean(values) for values in zip(*per_batch, strict=True)]
    return StrategyCriterion(mean(means), standard_error(means), mean(of_means))
