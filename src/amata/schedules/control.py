"""The control u of an epoch, and of each of its batches.

K may be a fraction: then batches take the whole numbers around it in turn. Of five batches with
K = 1.4, two take two steps:

>>> u = reaching(1.4, tau=0.5)
>>> [u.for_batch(i).steps for i in range(5)]
[1, 2, 1, 2, 1]
>>> [u.for_batch(i).step_size for i in range(2)]
[0.5, 0.25]
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Generic, NamedTuple, cast

from typing_extensions import TypeVar

from amata.errors import InputError
from amata.quantity import not_negative, positive, steps_of, whole

FINEST = 10**6
"""The largest denominator of K as a fraction: rounding errors of K do not change it."""

K = TypeVar("K", bound=float, covariant=True, default=int)


class Control(NamedTuple, Generic[K]):
    """u = (K, alpha): the number of inner steps and the size of each.

    The control of an epoch, `Control[float]`, may have a fractional K; `for_batch` gives that of a
    batch. `Control` alone is the control of a batch, with a whole K: what a method gets.
    """

    steps: K
    step_size: float
    """alpha. Of a fractional K with a `tau`, tau / K, or tau where K < 1."""
    tau: float | None = None
    """K alpha, which all batches of a fractional K share unless their steps are limited; None if
    they share the step size."""
    eps: float = 1.0
    """The training radius, times that of the method: eps, or with `reach`, reach eps."""
    size: int | None = None
    """The side of the training images, which are reduced to it; None if they are not."""
    step_size_max: float | None = None
    """What alpha = tau / K is limited to; None if it is not."""

    def for_batch(self, index: int) -> "Control":
        """The control of a batch (from 0). The first i batches take i K steps in all, rounded half
        up: in every run, resumed or in several processes, the same batches take more."""
        if isinstance(self.steps, int):
            return cast("Control", self)
        top, bottom = _fraction(self.steps)
        before, after = ((2 * top * i + bottom) // (2 * bottom) for i in (index, index + 1))
        return self._whole(after - before)

    def parts(self) -> "list[tuple[float, Control]]":
        """The controls of the batches, fewest steps first, each with its share of them."""
        if isinstance(self.steps, int):
            return [(1.0, cast("Control", self))]
        top, bottom = _fraction(self.steps)
        few, rest = divmod(top, bottom)
        mixed = (1 - rest / bottom, few), (rest / bottom, few + 1)
        return [(part, self._whole(steps)) for part, steps in mixed if part]

    def scaled(self, factor: float) -> "Control[K]":
        """The same control in a ball of `factor` times the radius: steps are smaller with it."""
        tau, most = (None if v is None else v * factor for v in (self.tau, self.step_size_max))
        alpha, eps = self.step_size * factor, self.eps * factor
        return self._replace(step_size=alpha, tau=tau, eps=eps, step_size_max=most)

    def with_more(self, extra: int) -> "Control[float]":
        """The control with `extra` steps more, which are smaller: K alpha stays the same, or gets
        nearer to tau if the steps are limited."""
        steps = self.steps + extra
        if self.step_size_max is not None:
            return self.with_steps(steps)
        alpha = self.step_size * max(float(self.steps), 1.0) / max(steps, 1.0)
        return Control(steps, alpha, self.tau, self.eps, self.size)

    def with_steps(self, steps: float) -> "Control[float]":
        """The control with so many steps, which reach as far together."""
        tau = self.step_size * max(float(self.steps), 1.0) if self.tau is None else self.tau
        return reaching(steps, tau, self.eps, self.step_size_max)._replace(size=self.size)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self._asdict().items() if v != self._field_defaults.get(k, ...)}
        return f"Control({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def _whole(self, steps: int) -> "Control":
        if self.tau is None:
            return Control(steps, self.step_size, None, self.eps, self.size)
        return cast("Control", self.with_steps(steps))


def reaching(
    steps: float, tau: float, eps: float = 1.0, step_size_max: float | None = None
) -> Control[float]:
    """K steps that reach tau together: alpha = tau / K, and tau itself where K < 1. If they are
    limited, alpha is at most `step_size_max`."""
    exact = int(steps) if steps == int(steps) else steps
    alpha = _limited(tau / max(exact, 1), step_size_max)
    # tau is kept where alpha does not tell it
    told = isinstance(exact, int) and step_size_max is None
    return Control(exact, alpha, None if told else tau, eps, None, step_size_max)


def _limited(alpha: float, most: float | None) -> float:
    return alpha if most is None else min(alpha, most)


def is_single_step(u: Control[float]) -> bool:
    """Whether some batches take one step, and none takes more than two."""
    return 0 < u.steps < 2


def only_k_changes(plan: Sequence[Control[float]]) -> bool:
    """Whether K alpha and its limit are the same in every epoch with an attack, and all else as
    usual."""
    tau = [u.tau or u.steps * u.step_size for u in plan if u.steps >= 1]
    limits = {u.step_size_max for u in plan}
    rest = [u._replace(steps=0, step_size=0.0, tau=None, step_size_max=None) for u in plan]
    return (
        all(math.isclose(t, tau[0]) for t in tau)
        and len(limits) <= 1
        and all(u == Control(0, 0.0) for u in rest)
    )


def read_control(value: Any) -> Control[float]:
    """The control that somebody's own schedule returned, which may be a plain pair."""
    try:
        steps, step_size, tau, eps, size, most = Control(*value)
    except TypeError:
        raise InputError(
            f"a schedule must return (steps, step_size) for an epoch, not {value!r}"
        ) from None
    read = Control(
        steps_of(steps, "steps of the schedule"),
        not_negative(step_size, "step_size of the schedule"),
        None if tau is None else positive(tau, "tau of the schedule"),
        positive(eps, "eps of the schedule"),
        None if size is None else whole(size, "size of the schedule", 1),
        None if most is None else positive(most, "step_size_max of the schedule"),
    )
    if read.step_size_max is None:
        return read
    if read.tau is None:
        raise InputError("step_size_max of a schedule limits tau / K; return tau too")
    return read.with_steps(read.steps)


@lru_cache
def _fraction(steps: float) -> tuple[int, int]:
    """K as the nearest simple fraction: 1.4, which no float equals, is 7/5."""
    return Fraction(steps).limit_denominator(FINEST).as_integer_ratio()
