"""Open-loop schedules t -> u_t = (K_t, alpha_t): how hard the inner maximisation works in each
epoch, fixed in advance.

A schedule is a pure function of (epoch, epochs) and needs nothing else of this package:

>>> anneal = Linear(k_min=2, k_max=10, tau=0.5)
>>> [anneal(epoch, epochs=10).steps for epoch in range(10)]
[2, 3, 4, 4, 5, 6, 7, 8, 8, 9]

Finer: with `fractional` K is not rounded, and `for_batch` gives each batch a whole K.

>>> fine = Linear(k_min=0, k_max=2, tau=0.5, fractional=True)(epoch=1, epochs=4)
>>> fine.steps, [fine.for_batch(i).steps for i in range(4)]
(0.5, [1, 0, 1, 0])
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from amata.errors import InputError
from amata.fields import Keywords, read_fields
from amata.quantity import (
    Count,
    NotNegative,
    Positive,
    Share,
    Sizes,
    Steps,
    StepStages,
    Whole,
    round_half_up,
)
from amata.schedules.contract import check_epoch
from amata.schedules.control import Control, reaching


def size_of(sizes: Sequence[tuple[float, int]], epoch: int, epochs: int) -> int | None:
    """The side of an epoch's images; None if they are not reduced."""
    return next((side for until, side in sizes if epoch / epochs < until), None)


def read_range(schedule: Any) -> None:
    """Read the fields; refuse bounds the wrong way round."""
    read_fields(schedule)
    if schedule.k_min > schedule.k_max:
        raise InputError(
            f"k_min = {schedule.k_min} is above k_max = {schedule.k_max}; annealing goes from "
            "few steps to many"
        )


@dataclass(frozen=True, kw_only=True)
class Constant(Keywords):
    """K_t = steps, alpha_t = step_size: no annealing, the schedule of PGD-K."""

    steps: Steps
    """K; of 1.4, two batches of five take two steps and three take one."""
    step_size: NotNegative
    """alpha."""
    sizes: Sizes = ()
    """(Share of the run, side in pixels) pairs: training images are reduced to that side before
    that share of the run."""

    if TYPE_CHECKING:  # fractions such as "2/255" are read as numbers

        def __init__(
            self,
            *,
            steps: float | str,
            step_size: float | str,
            sizes: Sequence[tuple[float, int]] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        read_fields(self)

    def __call__(self, epoch: int, epochs: int) -> Control[float]:
        check_epoch(epoch, epochs)
        return self.largest()._replace(size=size_of(self.sizes, epoch, epochs))

    def largest(self) -> Control[float]:
        return Control(self.steps, self.step_size)


@dataclass(frozen=True, kw_only=True)
class Annealing(Keywords, ABC):
    """K_t = k_min + (k_max - k_min) s_t, where s_t rises from 0 to 1 over the run; tau may change
    along with K; the training radius may change, and the size of the images may rise."""

    k_min: Whole
    """K in the first epoch; K = 0 trains on the attack's start."""
    k_max: Count
    """K towards the end."""
    tau: Positive
    """K alpha, which is constant, or in the first epoch if `tau_end` is given."""
    tau_end: Positive | None = None
    """K alpha towards the end: it changes along with K."""
    step_size_max: Positive | None = None
    """The longest step: alpha_t = tau / K_t, but not above this. Long single steps overfit
    catastrophically; 1.25 eps is safe for longer."""
    fractional: bool = False
    """Whether K is not rounded: batches take the whole numbers around it in turn."""
    eps_start: Positive = 1.0
    """The training radius in the first epoch, times the usual one, which is eps or, with
    `method.reach`, reach eps. It changes linearly to that, and K alpha is times the same factor."""
    eps_until: Share = 1.0
    """The share of the run after which the training radius is the usual one."""
    sizes: Sizes = ()
    """(Share of the run, side in pixels) pairs: training images are reduced to that side before
    that share of the run."""

    def __post_init__(self) -> None:
        read_range(self)
        if self.eps_until < 1 and self.eps_start == 1:
            raise InputError(
                f"eps_until = {self.eps_until:g} has no effect without eps_start; set eps_start, "
                "as to 0.5"
            )

    @abstractmethod
    def risen(self, epoch: int, epochs: int) -> float | Fraction:
        """s_t."""

    def __call__(self, epoch: int, epochs: int) -> Control[float]:
        check_epoch(epoch, epochs)
        risen = self.risen(epoch, epochs)
        steps = self.k_min + (self.k_max - self.k_min) * risen
        tau = self.tau
        if self.tau_end is not None:
            tau += (self.tau_end - tau) * float(risen)
        eps, full = 1.0, self.eps_until * epochs
        if epoch < full:
            eps -= (1 - self.eps_start) * (1 - epoch / full)
        k = float(steps) if self.fractional else round_half_up(steps)
        most = None if self.step_size_max is None else eps * self.step_size_max
        size = size_of(self.sizes, epoch, epochs)
        return reaching(k, eps * tau, eps, most)._replace(size=size)

    def largest(self) -> Control[float]:
        tau = self.tau if self.tau_end is None else self.tau_end
        return reaching(self.k_max, tau, step_size_max=self.step_size_max)


@dataclass(frozen=True, kw_only=True)
class Linear(Annealing):
    """Amata (Algorithm 1): K_t = k_min + (k_max - k_min) t / T, rounded half up; alpha_t = tau /
    K_t, so that K_t alpha_t = tau."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            k_min: int,
            k_max: int,
            tau: float | str,
            tau_end: float | str | None = None,
            step_size_max: float | str | None = None,
            fractional: bool = False,
            eps_start: float | str = 1.0,
            eps_until: float | str = 1.0,
            sizes: Sequence[tuple[float, int]] = (),
        ) -> None: ...

    def risen(self, epoch: int, epochs: int) -> Fraction:
        return Fraction(epoch, epochs)  # exact: a half rounds up on every machine


@dataclass(frozen=True, kw_only=True)
class Exponential(Annealing):
    """The paper's appendix: K_t = k_min + (k_max - k_min) (1 - e^(-eta t)) / (1 - e^(-eta T)),
    rounded half up; alpha_t = tau / K_t."""

    eta: Positive = 1.0
    """How early K rises: the larger, the earlier."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            k_min: int,
            k_max: int,
            tau: float | str,
            tau_end: float | str | None = None,
            step_size_max: float | str | None = None,
            fractional: bool = False,
            eps_start: float | str = 1.0,
            eps_until: float | str = 1.0,
            sizes: Sequence[tuple[float, int]] = (),
            eta: float = 1.0,
        ) -> None: ...

    def risen(self, epoch: int, epochs: int) -> float:
        return math.expm1(-self.eta * epoch) / math.expm1(-self.eta * epochs)


@dataclass(frozen=True, kw_only=True)
class Piecewise(Keywords):
    """Stages given by hand: `stages` holds (first epoch, K) pairs. Give `tau`, then alpha_t = tau /
    K_t (tau itself where K_t = 0); or `step_size`, then alpha_t is constant.

    >>> Piecewise(stages=[(0, 2), (5, 10)], tau=0.5)(4, 10)
    Control(steps=2, step_size=0.25)
    """

    stages: StepStages
    """(First epoch, K) pairs, from epoch 0 on; K may be a fraction."""
    tau: Positive | None = None
    """K alpha, which is constant; or give `step_size`."""
    step_size: Positive | None = None
    """alpha, which is constant; or give `tau`."""
    step_size_max: Positive | None = None
    """With `tau`, the longest step."""
    sizes: Sizes = ()
    """(Share of the run, side in pixels) pairs: training images are reduced to that side before
    that share of the run."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            stages: Sequence[tuple[int, float]],
            tau: float | str | None = None,
            step_size: float | str | None = None,
            step_size_max: float | str | None = None,
            sizes: Sequence[tuple[float, int]] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        read_fields(self)
        if (self.tau is None) == (self.step_size is None):
            raise InputError("a piecewise schedule needs tau or step_size, one of the two")
        if self.step_size is not None and self.step_size_max is not None:
            raise InputError("step_size_max limits tau / K; with step_size, leave it out")

    def __call__(self, epoch: int, epochs: int) -> Control[float]:
        check_epoch(epoch, epochs)
        u = self._control([k for first, k in self.stages if first <= epoch][-1])
        return u._replace(size=size_of(self.sizes, epoch, epochs))

    def largest(self) -> Control[float]:
        return self._control(max(k for _, k in self.stages))

    def _control(self, steps: float) -> Control[float]:
        if self.step_size is not None:
            return Control(steps, self.step_size)
        assert self.tau is not None
        return reaching(steps, self.tau, step_size_max=self.step_size_max)
