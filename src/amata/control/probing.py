"""The Hamiltonian of adversarial training, measured on a batch (the paper's section on optimal
control, and its last appendix).

Training is a controlled flow theta' = F(theta, u) = -grad_theta l(h[A_u(x)], y) with running cost
R(u), so H(theta, p, u) = <p, F(theta, u)> - R(u). Over one short step the co-state is p =
-grad_theta l(h[A_z(x)], y), and with g_u for the gradient that the control u leads to

    H(u) = |g_u|^2 - R(u)        the squared-norm form, z replaced by u itself
    H(u) = <g_u, g_z> - R(u)     the inner-product form, with a fixed strong z

A_u is the method's own step under u, and g_u the displacement of the weights that the step causes
on one batch, per unit of learning rate: the sum over free's m updates, and over yopo's m passes. So
all methods share one scale. Frozen weights do not count.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from amata.batch import Batch
from amata.engine import ProbeNet
from amata.methods import Memory, Method
from amata.schedules import Control
from amata.seeds import derive, generator
from amata.threat import Ball, feasible_gap


class Measured(NamedTuple):
    """What one control does and costs on one batch."""

    control: Control
    value: float
    """|g_u|^2, or <g_u, g_z> with a fixed z."""
    grad_evals: float
    """Full-network gradient evaluations per image."""
    seconds: float


class Gaps(NamedTuple):
    """Two measures of convergence of the inner maximisation, for each sample."""

    fosc: Tensor
    """As in the paper. It ignores [0, 1], so saturated pixels keep it above 0."""
    feasible: Tensor
    """The feasible gap: 0 where no feasible move increases the linearised loss."""


@dataclass(frozen=True)
class RunningCost(ABC):
    """R(u) = gamma times the price of a control. Subclass it for a price of your own."""

    gamma: float = 0.04

    @abstractmethod
    def price(self, measured: Measured) -> float: ...

    def __call__(self, measured: Measured) -> float:
        return self.gamma * self.price(measured)


class StepCost(RunningCost):
    """R(u) = gamma K: the paper's."""

    def price(self, measured: Measured) -> float:
        return measured.control.steps


class GradientCost(RunningCost):
    """R(u) = gamma times the gradient evaluations per image, which include what a method computes
    besides its K steps."""

    def price(self, measured: Measured) -> float:
        return measured.grad_evals


class SecondCost(RunningCost):
    """R(u) = gamma times the seconds that the batch takes on this machine."""

    def price(self, measured: Measured) -> float:
        return measured.seconds


COSTS: dict[str, type[RunningCost]] = {
    "steps": StepCost,
    "gradients": GradientCost,
    "seconds": SecondCost,
}


@dataclass
class Probe:
    """Measures controls of a method on one model and batch, each with the same start, noise and
    BatchNorm statistics.

    The model is never changed. With `z`, the value is the inner-product form.
    """

    net: ProbeNet
    method: Method
    batch: Batch
    memory: Memory
    seed: int = 0
    z: Control | None = None

    def __post_init__(self) -> None:
        self._costate: Tensor | None = None

    def displacement(self, u: Control) -> Tensor:
        """g_u: how far the method's step moves the trainable weights, per unit of learning rate."""
        device = self.batch.x.device
        self.net.rewind()
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # dropout draws from the global generator
            torch.manual_seed(derive(self.seed, "layers"))
            rng = generator(self.seed, "probe", device=device)
            self.method.step(
                self.net, self.batch, u, rng, {k: v.clone() for k, v in self.memory.items()}
            )
        return self.net.displacement

    def __call__(self, u: Control) -> Measured:
        if self.z is not None and self._costate is None:
            self._costate = self.displacement(self.z)
        _synchronize(self.batch.x)
        before, started = self.net.grad_evals, time.perf_counter()
        g = self.displacement(u)
        _synchronize(self.batch.x)
        seconds = time.perf_counter() - started
        p = g if self._costate is None else self._costate
        return Measured(
            u,
            float(g.double() @ p.double()),
            (self.net.grad_evals - before) / len(self.batch.x),
            seconds,
        )

    def gaps(self, u: Control, ball: Ball) -> Gaps:
        """How far the adversarial images under u are from a maximum of the linearised loss."""
        self.displacement(u)
        x, x_adv = self.batch.x, self.net.x_adv
        self.net.rewind()
        g = self.net.input_grad(x_adv, self.batch.y)
        return Gaps(ball.fosc(x_adv, x, g), feasible_gap(ball.around(x), x_adv, g))


def hamiltonian(measured: Measured, cost: RunningCost) -> float:
    """H(u) of a measured control."""
    return measured.value - cost(measured)


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
