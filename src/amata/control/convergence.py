"""Theorem 1 on a problem with known constants: the measured gradient against the bound, over T,
over delta and for schedules of equal cost.

    l_i(theta, x) = sum_j a/2 theta_j^2 + c cos(theta_j) - b_ij theta_j
                          + s theta_j x_j - mu/2 (x_j - x_ij)^2,    |x - x_i|_inf <= eps

is mu-strongly concave in x and, for c > a, not convex in theta. L_theta_theta = a + c, L_theta_x =
L_x_theta = s. The inner maximum is x*_ij = x_ij + clip(s theta_j / mu, eps) for every i. So the
noise of a sampled gradient, -b_i + s x_i, does not depend on theta, and sigma is known too. Delta
comes from the minimum of L, which is a sum over coordinates.

The theorem as printed is (1/T) sum E|grad L|^2 <= 4 sigma sqrt(beta Delta / T) + 5 L_theta_x^2
delta^2 for eta = min(1/beta, sqrt(Delta / (T beta sigma^2))). Without noise it would claim a zero
gradient after one step, and the third line of its proof has eta (1 - beta eta / 2) for eta (1 -
beta eta). The proof, corrected: let g~ = grad L + n + e be the gradient that a step uses. E n = 0
and E|n|^2 <= sigma^2; e comes from the inexact inner maximum, E|e|^2 <= L_theta_x^2 delta_t^2.
L is beta-smooth, so

    L(theta - eta g~) <= L - eta <grad L, g~> + beta eta^2 / 2 |g~|^2
        = L - eta (1 - beta eta / 2) |grad L|^2 - eta (1 - beta eta) <grad L, n + e>
            + beta eta^2 / 2 |n + e|^2.

For eta <= 1/beta, -<grad L, e> <= (|grad L|^2 + |e|^2) / 2 and |n + e|^2 <= 2 |n|^2 + 2 |e|^2 give

    E L(theta_t+1) <= E L(theta_t) - eta/2 E|grad L|^2 + eta/2 (1 + beta eta) L_theta_x^2 delta_t^2
                      + beta eta^2 sigma^2.

The sum over t is `corrected`: (1/T) sum E|grad L|^2 <= 2 Delta / (eta T) + 2 beta eta sigma^2 +
(1 + beta eta) L_theta_x^2 (1/T) sum delta_t^2. For T >= beta Delta / sigma^2 the first two terms
are 4 sigma sqrt(beta Delta / T), and the printed bound follows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amata.errors import InputError
from amata.quantity import positive, whole
from amata.schedules import Constant, Linear, Schedule
from amata.seeds import generator

PARTS = 40
"""The number of means that delta_t^2 over time is reported as."""


class Bounds(NamedTuple):
    """Theorem 1's right-hand side, from a problem's constants."""

    sigma: float
    beta: float
    gap: float
    """Delta = L(theta_0) - min L."""
    coupling: float
    """L_theta_x."""

    @property
    def least_steps(self) -> float:
        """The smallest T for which the printed theorem holds."""
        return self.beta * self.gap / self.sigma**2

    def learning_rate(self, steps: int) -> float:
        """eta."""
        return min(1 / self.beta, math.sqrt(self.gap / (steps * self.beta * self.sigma**2)))

    def printed(self, steps: int, delta: float) -> float:
        return (
            4 * self.sigma * math.sqrt(self.beta * self.gap / steps)
            + 5 * (self.coupling * delta) ** 2
        )

    def corrected(self, deltas: Sequence[float]) -> float:
        """The bound that the proof gives, for any T = len(deltas): delta_t is the error of the
        inner maximisation at step t, as a root mean square over batches and runs."""
        steps = len(deltas)
        if steps == 0:
            raise InputError("deltas is empty; give delta_t of at least one step")
        eta = self.learning_rate(steps)
        noise = 2 * self.gap / (eta * steps) + 2 * self.beta * eta * self.sigma**2
        error = sum(delta**2 for delta in deltas) / steps
        return noise + (1 + self.beta * eta) * self.coupling**2 * error


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    a: float = 1.0
    c: float = 1.5
    s: float = 1.0
    mu: float = 1.0
    eps: float = 0.5
    spread: float = 1.0
    """The size of the noise b_i."""
    size: int = 4
    samples: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("a", "c", "s", "mu", "eps", "spread"):
            positive(getattr(self, name), name)
        whole(self.size, "size", 1), whole(self.samples, "samples", 2)

    def data(self) -> tuple[Tensor, Tensor]:
        """b_i and x_i. Their means are not zero, so the minimum is not at zero."""
        return _draw(self.seed, self.samples, self.size, self.spread)

    def worst(self, theta: Tensor) -> Tensor:
        """x* - x_i, the same for every sample."""
        return (self.s * theta / self.mu).clamp(-self.eps, self.eps)

    def value(self, theta: Tensor) -> Tensor:
        """L at rows of theta, coordinate by coordinate: shape (N, size)."""
        b, x = self.data()
        move = self.worst(theta)
        robust = self.s * theta * (x.mean(0) + move) - self.mu / 2 * move**2
        return self.a / 2 * theta**2 + self.c * torch.cos(theta) - b.mean(0) * theta + robust

    def gradient(self, theta: Tensor) -> Tensor:
        """grad L, by Danskin's theorem."""
        b, x = self.data()
        return (
            self.a * theta
            - self.c * torch.sin(theta)
            - b.mean(0)
            + self.s * (x.mean(0) + self.worst(theta))
        )

    def start(self) -> Tensor:
        return torch.full((self.size,), 2.5, dtype=torch.float64)

    def bounds(self) -> Bounds:
        b, x = self.data()
        noise = -b + self.s * x
        sigma = math.sqrt(float(((noise - noise.mean(0)) ** 2).sum(1).mean()))
        grid = torch.linspace(-6, 6, 240001, dtype=torch.float64)[:, None].expand(-1, self.size)
        gap = float((self.value(self.start()[None])[0] - self.value(grid).amin(0)).sum())
        return Bounds(sigma, self.s**2 / self.mu + self.a + self.c, gap, self.s)

    def train(
        self, schedule: Schedule, steps: int, *, repeats: int = 64, seed: int = 0
    ) -> "Measurement":
        """Algorithm 1 with batches of one: T outer steps, sign steps within the box, averaged over
        `repeats` independent runs."""
        b, x = self.data()
        eta = self.bounds().learning_rate(steps)
        rng = generator(seed, "convergence", steps)
        theta = self.start().expand(repeats, -1).clone()
        squares, delta, deltas, cost = 0.0, 0.0, [], 0
        for t in range(steps):
            u = schedule(t, steps).for_batch(t)
            cost += u.steps
            squares += float((self.gradient(theta) ** 2).sum(1).mean())
            chosen = torch.randint(self.samples, (repeats,), generator=rng)
            move = torch.zeros_like(theta)  # x^0 is the sample itself
            for _ in range(u.steps):
                move = (move + u.step_size * torch.sign(self.s * theta - self.mu * move)).clamp(
                    -self.eps, self.eps
                )
            errors = (move - self.worst(theta)).norm(dim=1)
            delta = max(delta, float(errors.max()))
            deltas.append(float(errors.square().mean().sqrt()))
            theta = theta - eta * (
                self.a * theta - self.c * torch.sin(theta) - b[chosen] + self.s * (x[chosen] + move)
            )
        return Measurement(steps, cost / steps, squares / steps, delta, deltas)


@lru_cache
def _draw(seed: int, samples: int, size: int, spread: float) -> tuple[Tensor, Tensor]:
    rng = generator(seed, "synthetic")
    b = 0.3 + spread * torch.randn(samples, size, generator=rng, dtype=torch.float64)
    return b, torch.rand(samples, size, generator=rng, dtype=torch.float64)


class Measurement(NamedTuple):
    steps: int
    cost: float
    """The mean K of an outer step."""
    squares: float
    """The mean over steps and repeats of |grad L|^2."""
    delta: float
    """The largest distance from a found adversarial example to the true one."""
    deltas: list[float]
    """That distance at every step, as a root mean square over the repeats."""


def study(
    problem: Synthetic | None = None,
    *,
    repeats: int = 64,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measurement and bound: over T for five schedules, three of them of equal cost; over delta at
    a large T; and delta_t^2 over time for the schedules of equal cost at the largest T."""
    problem = problem or Synthetic()
    bounds = problem.bounds()
    tau = 3 * problem.eps
    annealed = Linear(k_min=2, k_max=10, tau=tau)
    equal_cost: dict[str, Schedule] = {
        "Amata 2 to 10": annealed,
        "PGD-6": Constant(steps=6, step_size=tau / 6),
        "reversed": lambda t, steps: annealed(steps - 1 - t, steps),
    }
    schedules: dict[str, Schedule] = {
        **equal_cost,
        "PGD-2": Constant(steps=2, step_size=tau / 2),
        "PGD-10": Constant(steps=10, step_size=tau / 10),
    }
    over_time: dict[str, list[float]] = {}
    lengths = [math.ceil(bounds.least_steps * 2**i) for i in range(0, 8)]

    def row(name: str, schedule: Schedule, steps: int) -> dict[str, Any]:
        progress(f"{name}, T = {steps}")
        m = problem.train(schedule, steps, repeats=repeats)
        squares = [delta**2 for delta in m.deltas]
        if name in equal_cost and steps == lengths[-1]:
            width = math.ceil(steps / PARTS)
            parts = [squares[i : i + width] for i in range(0, steps, width)]
            over_time[name] = [sum(part) / len(part) for part in parts]
        return {
            "schedule": name,
            "steps": steps,
            "cost": m.cost,
            "squares": m.squares,
            "delta": m.delta,
            "mean_delta_squared": sum(squares) / steps,
            "printed": bounds.printed(steps, m.delta),
            "corrected": bounds.corrected(m.deltas),
        }

    over_steps = [
        row(name, schedule, steps) for name, schedule in schedules.items() for steps in lengths
    ]
    counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    over_delta = [
        row(f"PGD-{k}", Constant(steps=k, step_size=tau / k), lengths[-2]) for k in counts
    ]
    return {
        "constants": {**bounds._asdict(), "least_steps": bounds.least_steps},
        "over_steps": over_steps,
        "over_delta": over_delta,
        "over_time": over_time,
    }
