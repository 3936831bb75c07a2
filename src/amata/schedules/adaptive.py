"""Adaptive: a closed-loop schedule, which the paper leaves as future work.

At the start of each epoch it probes a few controls (K, tau / K) for f(K), the squared norm of the
weight gradient after K inner steps. It takes the K that maximises the greedy Hamiltonian
f(K) - gamma K. Probes are noisy, and distant K often differ by little. So the maximum is taken of
the curve a - b / K fitted to the probes: each further step of a converging inner maximisation gains
less. The best K is then sqrt(b / gamma), clipped to [k_min, k_max].

gamma is given, or it is the multiplier of a budget: the price at which the epochs so far would on
average have spent what is now left for each remaining epoch. An epoch spends more than its even
share where steps gain more than on average so far, and less where they gain less. The first epoch
has nothing to compare with and takes k_min. A run ends within half a step of its budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from amata.errors import InputError
from amata.fields import Keywords
from amata.quantity import Count, Positive, whole
from amata.schedules.annealing import read_range
from amata.schedules.contract import Account, Choice, Response
from amata.schedules.control import Control


@dataclass(frozen=True, kw_only=True)
class Adaptive(Keywords):
    """Chooses u_t = (K, tau / K) by probing. Give `gamma`, or `budget` in gradient evaluations per
    image and epoch, which includes probing."""

    k_min: Count = 1
    """The fewest steps."""
    k_max: Count = 10
    """The most steps."""
    tau: Positive
    """K alpha, which is constant."""
    gamma: Positive | None = None
    """The price of a step, as in the criterion; or give `budget`."""
    budget: Positive | None = None
    """Gradient evaluations per image and epoch, probing included; or give `gamma`."""
    probed: Annotated[int, partial(whole, least=2)] = 3
    """How many values of K are probed, evenly spaced in ratio from k_min to k_max."""
    probe_batches: Count = 2
    """Batches per epoch that every candidate is measured on."""
    scale: Literal["paper", "relative"] = "paper"
    """"relative" divides f by its largest value of the epoch: for optimisers whose step does not
    grow with the gradient, such as Adam."""

    def __post_init__(self) -> None:
        read_range(self)
        if (self.gamma is None) == (self.budget is None):
            raise InputError("an adaptive schedule needs gamma or budget, one of the two")
        if self.k_min == self.k_max:
            raise InputError(
                f"k_min = k_max = {self.k_min} leaves an adaptive schedule nothing to choose; "
                "use schedule.name = constant"
            )

    def candidates(self) -> list[Control]:
        ratio, gaps = self.k_max / self.k_min, min(self.probed, self.k_max - self.k_min + 1) - 1
        return [
            self._control(k)
            for k in sorted({round(self.k_min * ratio ** (i / gaps)) for i in range(gaps + 1)})
        ]

    def largest(self) -> Control:
        return self._control(self.k_max)

    def choose(self, curves: Sequence[Sequence[Response]], account: Account) -> Choice:
        gains = [self._gain(curve) for curve in curves]
        if self.gamma is not None:
            return Choice(self._control(round(self._best(gains[-1], self.gamma))), self.gamma)
        assert self.budget is not None
        least, most = curves[-1][0].cost, curves[-1][-1].cost
        per_step = (most - least) / (self.k_max - self.k_min)
        if per_step <= 0:
            raise InputError(
                "this method costs no more for more steps, so there is nothing to adapt; use "
                "schedule.name = constant"
            )
        left, ahead = (
            self.budget * account.epochs - account.spent,
            account.epochs - account.epoch - 1,
        )
        share = (left - ahead * account.probing) / (ahead + 1)
        if account.epoch == 0 and not least <= share + 1e-9 <= most + 2e-9:
            raise InputError(
                f"budget = {self.budget:g} gradient evaluations per image and epoch cannot be "
                f"met: K = {self.k_min} .. {self.k_max} "
                f"costs {least + account.probing:.2f} .. {most + account.probing:.2f}, "
                f"{account.probing:.2f} of it for probing"
            )
        gamma = self._price(gains, self.k_min + (share - least) / per_step)
        # Later epochs must be able to spend the rest and not more: between k_min and k_max steps in
        # each of them.
        high = left - ahead * (account.probing + least)
        low = left - ahead * (account.probing + most)
        cost = (
            least
            if account.epoch == 0
            else least + per_step * (self._best(gains[-1], gamma) - self.k_min)
        )
        steps = self.k_min + (min(max(cost, low), high) - least) / per_step
        return Choice(self._control(round(min(max(steps, self.k_min), self.k_max))), gamma)

    def _control(self, steps: int) -> Control:
        return Control(steps, self.tau / steps)

    def _gain(self, curve: Sequence[Response]) -> float:
        """b of the least-squares fit f(K) = a - b / K; none where more steps gain nothing."""
        scale = max(r.value for r in curve) if self.scale == "relative" else 1.0
        inverse = [1 / r.control.steps for r in curve]
        middle, mean = sum(inverse) / len(curve), sum(r.value for r in curve) / len(curve)
        slope = sum(
            (i - middle) * (r.value - mean) for i, r in zip(inverse, curve, strict=True)
        ) / sum((i - middle) ** 2 for i in inverse)
        return max(-slope / scale, 0.0) if scale > 0 else 0.0

    def _best(self, gain: float, gamma: float) -> float:
        """The K, not yet whole, that maximises a - b / K - gamma K between the bounds."""
        return min(max(math.sqrt(gain / gamma), self.k_min), self.k_max)

    def _price(self, gains: Sequence[float], steps: float) -> float:
        """The gamma at which epochs with these gains would on average take `steps` steps."""
        top = max(gains)
        if top == 0:
            return 1.0  # no step gains anything, whatever its price
        low, high = top / (2 * self.k_max) ** 2 * 1e-12, top / self.k_min**2
        for _ in range(200):  # the mean falls as the price rises: bisection, in ratio
            gamma = math.sqrt(low * high)
            mean = sum(self._best(gain, gamma) for gain in gains) / len(gains)
            low, high = (gamma, high) if mean > steps else (low, gamma)
        return high
