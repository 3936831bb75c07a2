"""Open-loop schedules t -> u_t = (K_t, alpha_t): how hard the inner maximisation works in each
epoch, fixed in advance.

A schedule is a pure function of (epoch, epochs) and needs nothing else of this package:

>>> anneal = Linear(k_min=2, k_max=10, tau=0.5)
>>> [anneal(epoch, epochs=10).steps for epoch in range(10)]
[2, 3, 4, 4, 5, 6, 7, 8, 8, 9]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amata.errors import InputError
from amata.quantity import number, positive, whole
from amata.schedules.contract import Control


def _half_up(value: float) -> int:
    return math.floor(value + 0.5)


def _check_epoch(epoch: int, epochs: int) -> None:
    if not 0 <= epoch <= epochs:
        raise InputError(f"epoch = {epoch} is not between 0 and epochs = {epochs}")


def check_range(schedule: Any) -> None:
    """Read k_min, k_max and tau as numbers; refuse bounds the wrong way round."""
    set_field = object.__setattr__
    set_field(schedule, "k_min", whole(schedule.k_min, "k_min", 1))
    set_field(schedule, "k_max", whole(schedule.k_max, "k_max", 1))
    set_field(schedule, "tau", positive(schedule.tau, "tau"))
    if schedule.k_min > schedule.k_max:
        raise InputError(
            f"k_min = {schedule.k_min} is above k_max = {schedule.k_max}; annealing goes from "
            "few steps to many"
        )


@dataclass(frozen=True, kw_only=True)
class Constant:
    """K_t = steps, alpha_t = step_size: no annealing, the schedule of PGD-K."""

    steps: int
    """K."""
    step_size: float
    """alpha."""

    if TYPE_CHECKING:  # fractions such as "2/255" are read as numbers

        def __init__(self, *, steps: int, step_size: float | str) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole(self.steps, "steps", 0))
        object.__setattr__(self, "step_size", number(self.step_size, "step_size"))
        if self.step_size < 0:
            raise InputError(f"step_size = {self.step_size} must not be negative")

    def __call__(self, epoch: int, epochs: int) -> Control:
        return Control(self.steps, self.step_size)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Amata (Algorithm 1): K_t = k_min + (k_max - k_min) t / T, rounded half up; alpha_t = tau /
    K_t, so that K_t alpha_t = tau."""

    k_min: int
    """K in the first epoch."""
    k_max: int
    """K towards the end."""
    tau: float
    """K alpha, which is constant."""

    if TYPE_CHECKING:

        def __init__(self, *, k_min: int, k_max: int, tau: float | str) -> None: ...

    def __post_init__(self) -> None:
        check_range(self)

    def __call__(self, epoch: int, epochs: int) -> Control:
        _check_epoch(epoch, epochs)
        # Integers are multiplied before the one division, so that a half is an exact half and
        # rounds up on every machine.
        steps = _half_up(self.k_min + (self.k_max - self.k_min) * epoch / epochs)
        return Control(steps, self.tau / steps)


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """The paper's appendix: K_t = k_min + (k_max - k_min) (1 - e^(-eta t)) / (1 - e^(-eta T)),
    rounded half up; alpha_t = tau / K_t."""

    k_min: int
    """K in the first epoch."""
    k_max: int
    """K towards the end."""
    tau: float
    """K alpha, which is constant."""
    eta: float = 1.0
    """How early K rises: the larger, the earlier."""

    if TYPE_CHECKING:

        def __init__(
            self, *, k_min: int, k_max: int, tau: float | str, eta: float = 1.0
        ) -> None: ...

    def __post_init__(self) -> None:
        check_range(self)
        object.__setattr__(self, "eta", positive(self.eta, "eta"))

    def __call__(self, epoch: int, epochs: int) -> Control:
        _check_epoch(epoch, epochs)
        share = math.expm1(-self.eta * epoch) / math.expm1(-self.eta * epochs)
        steps = _half_up(self.k_min + (self.k_max - self.k_min) * share)
        return Control(steps, self.tau / steps)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """Stages given by hand: `stages` holds (first epoch, K) pairs, alpha_t = tau / K_t (tau itself
    where K_t = 0).

    >>> Piecewise(stages=[(0, 2), (5, 10)], tau=0.5)(4, 10)
    Control(steps=2, step_size=0.25)
    """

    stages: tuple[tuple[int, int], ...]
    """(First epoch, K) pairs, from epoch 0 on."""
    tau: float
    """K alpha, which is constant."""

    if TYPE_CHECKING:

        def __init__(self, *, stages: Sequence[tuple[int, int]], tau: float | str) -> None: ...

    def __post_init__(self) -> None:
        stages = tuple(
            (whole(epoch, "stage's first epoch", 0), whole(steps, "stage's K", 0))
            for epoch, steps in self.stages
        )
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "tau", positive(self.tau, "tau"))
        starts = [epoch for epoch, _ in stages]
        if not stages or starts[0] != 0 or starts != sorted(set(starts)):
            raise InputError(
                f"stages = {list(stages)} must start at epoch 0, with rising epochs, "
                "as in [[0, 2], [5, 10]]"
            )

    def __call__(self, epoch: int, epochs: int) -> Control:
        _check_epoch(epoch, epochs)
        steps = [k for first, k in self.stages if first <= epoch][-1]
        return Control(steps, self.tau / max(steps, 1))
