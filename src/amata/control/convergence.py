"""Theorem 1 on a problem with known constants: the measured gradient against the bound, over T and
over delta.

    l_i(theta, x) = sum_j a/2 theta_j^2 + c cos(theta_j) - b_ij theta_j
                          + s theta_j x_j - mu/2 (x_j - x_ij)^2,    |x - x_i|_inf <= eps

is mu-strongly concave in x and, for c > a, not convex in theta. L_theta_theta = a + c, L_theta_x =
L_x_theta = s. The inner maximum is x*_ij = x_ij + clip(s theta_j / mu, eps) for every i. So the
noise of a sampled gradient, -b_i + s x_i, does not depend on theta, and sigma is known too. Delta
comes from the minimum of L, which is a sum over coordinates.

The theorem as printed, (1/T) sum E|grad L|^2 <= 4 sigma sqrt(beta Delta / T) + 5 L_theta_x^2
delta^2, omits two things. First, its step is min(1/beta, sqrt(Delta / (T beta sigma^2))). The proof
gives a term of order 1 / sqrt(T) only where the second is smaller, T >= beta Delta / sigma^2.
Without noise the printed bound would claim a zero gradient after one step. Second, the proof's own
chain ends with (4 sigma sqrt(beta Delta / T) + (1 + 1.5 beta eta) L_theta_x^2 delta^2) / (1 - beta
eta / 2), up to twice the printed first term. `derived` is this bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amata.quantity import positive, whole
from amata.schedules import Constant, Linear, Schedule
from amata.seeds import generator


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
        """The smallest T for which the theorem holds."""
        return self.beta * self.gap / self.sigma**2

    def learning_rate(self, steps: int) -> float:
        """eta."""
        return min(1 / self.beta, math.sqrt(self.gap / (steps * self.beta * self.sigma**2)))

    def printed(self, steps: int, delta: float) -> float:
        return (
            4 * self.sigma * math.sqrt(self.beta * self.gap / steps)
            + 5 * (self.coupling * delta) ** 2
        )

    def derived(self, steps: int, delta: float) -> float:
        """The bound from the proof's last inequality before the telescoping sum."""
        eta = self.learning_rate(steps)
        noise = 2 * self.gap / (eta * steps) + 2 * self.beta * eta * self.sigma**2
        return (noise + (1 + 1.5 * self.beta * eta) * (self.coupling * delta) ** 2) / (
            1 - self.beta * eta / 2
        )


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
        squares, delta = 0.0, 0.0
        for t in range(steps):
            u = schedule(t, steps)
            squares += float((self.gradient(theta) ** 2).sum(1).mean())
            chosen = torch.randint(self.samples, (repeats,), generator=rng)
            move = torch.zeros_like(theta)  # x^0 is the sample itself
            for _ in range(u.steps):
                move = (move + u.step_size * torch.sign(self.s * theta - self.mu * move)).clamp(
                    -self.eps, self.eps
                )
            delta = max(delta, float((move - self.worst(theta)).norm(dim=1).max()))
            theta = theta - eta * (
                self.a * theta - self.c * torch.sin(theta) - b[chosen] + self.s * (x[chosen] + move)
            )
        return Measurement(steps, squares / steps, delta)


@lru_cache
def _draw(seed: int, samples: int, size: int, spread: float) -> tuple[Tensor, Tensor]:
    rng = generator(seed, "synthetic")
    b = 0.3 + spread * torch.randn(samples, size, generator=rng, dtype=torch.float64)
    return b, torch.rand(samples, size, generator=rng, dtype=torch.float64)


class Measurement(NamedTuple):
    steps: int
    squares: float
    """The mean over steps and repeats of |grad L|^2."""
    delta: float
    """The largest distance from a found adversarial example to the true one."""


def study(
    problem: Synthetic | None = None,
    *,
    repeats: int = 64,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measurement and bound: over T for three schedules, and over delta at a large T."""
    problem = problem or Synthetic()
    bounds = problem.bounds()
    tau = 3 * problem.eps
    schedules: dict[str, Schedule] = {
        "Amata 2 to 10": Linear(k_min=2, k_max=10, tau=tau),
        "PGD-2": Constant(steps=2, step_size=tau / 2),
        "PGD-10": Constant(steps=10, step_size=tau / 10),
    }
    lengths = [math.ceil(bounds.least_steps * 2**i) for i in range(0, 8)]

    def row(name: str, schedule: Schedule, steps: int) -> dict[str, Any]:
        progress(f"{name}, T = {steps}")
        m = problem.train(schedule, steps, repeats=repeats)
        return {
            "schedule": name,
            **m._asdict(),
            "printed": bounds.printed(steps, m.delta),
            "derived": bounds.derived(steps, m.delta),
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
    }
