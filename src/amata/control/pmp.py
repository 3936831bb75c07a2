"""Pontryagin's maximum principle solved by successive approximations, for small problems with
discrete or continuous controls.

    minimise  Phi(theta_T) + integral of R(theta, u) dt    subject to  theta' = F(theta, u),  u in G

1. run the state forward under the current controls;
2. run the co-state backward, p(T) = -grad Phi, p' = -grad_theta H;
3. at every time take the u that maximises H = <p, F> - R;
4. move there, or only part of the way if that does not lower the objective (Chernousko and
   Lyubushin 1982); stop when no time gains any more.

Time is divided into equal steps with one control each. The state takes a fourth-order Runge-Kutta
step. The co-state is the exact adjoint of that step, so p is minus the gradient of the discretised
objective.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from amata.errors import InputError

RowFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ControlProblem:
    """A Bolza problem. Functions work on rows: theta of shape (N, d) and u of shape (N,) give (N,
    d) for F and (N,) for R and Phi."""

    flow: RowFunction
    running: RowFunction
    terminal: Callable[[Tensor], Tensor]
    theta0: Tensor
    horizon: float
    controls: Tensor | tuple[float, float]
    """The set of allowed values of u, or an interval."""
    parts: int = 200
    """The number of time steps."""

    def times(self) -> Tensor:
        """The start times of the steps."""
        return torch.arange(self.parts, dtype=torch.float64) * (self.horizon / self.parts)

    def hamiltonian(self, theta: Tensor, p: Tensor, u: Tensor) -> Tensor:
        """H = <p, F> - R, by rows."""
        return (p * self.flow(theta, u)).sum(1) - self.running(theta, u)

    def middle_times(self) -> Tensor:
        """The times halfway through the steps."""
        return self.times() + self.horizon / self.parts / 2

    def advance(self, theta: Tensor, u: Tensor, fraction: float = 1.0) -> tuple[Tensor, Tensor]:
        """One time step, or a fraction of it: the next states, and the running cost."""
        h = fraction * self.horizon / self.parts
        k1, r1 = self.flow(theta, u), self.running(theta, u)
        k2, r2 = self.flow(theta + h / 2 * k1, u), self.running(theta + h / 2 * k1, u)
        k3, r3 = self.flow(theta + h / 2 * k2, u), self.running(theta + h / 2 * k2, u)
        k4, r4 = self.flow(theta + h * k3, u), self.running(theta + h * k3, u)
        return theta + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), h / 6 * (r1 + 2 * r2 + 2 * r3 + r4)


@dataclass(frozen=True)
class Rollout:
    """Controls with their states theta(t_0) .. theta(t_n), co-states p(t_0) .. p(t_n) and
    objective."""

    u: Tensor
    theta: Tensor
    p: Tensor
    objective: float

    def middle(self) -> tuple[Tensor, Tensor]:
        """State and co-state halfway through each step: a control acts over the whole step, and H
        represents it best there."""
        return (self.theta[:-1] + self.theta[1:]) / 2, (self.p[:-1] + self.p[1:]) / 2


def run(problem: ControlProblem, u: Tensor) -> Rollout:
    """State forward, co-state backward, under the controls u, one for each time step."""
    if u.shape != (problem.parts,):
        raise InputError(
            f"the problem has {problem.parts} time steps, but u has shape {tuple(u.shape)}; give "
            "one control for each step"
        )
    states, spent = [problem.theta0[None]], torch.zeros((), dtype=torch.float64)
    for step in range(problem.parts):
        with torch.no_grad():
            theta, cost = problem.advance(states[-1], u[step : step + 1])
        states.append(theta)
        spent = spent + cost[0]
    end = states[-1].clone().requires_grad_()
    phi = problem.terminal(end)[0]
    (slope,) = torch.autograd.grad(phi, end)
    costates = [-slope]
    for step in reversed(range(problem.parts)):
        theta = states[step].clone().requires_grad_()
        after, cost = problem.advance(theta, u[step : step + 1])
        # p_k = (d theta_{k+1} / d theta_k)^T p_{k+1} - d R_k / d theta_k
        (p,) = torch.autograd.grad((costates[-1] * after).sum() - cost.sum(), theta)
        costates.append(p)
    objective = float(phi.detach() + spent)
    return Rollout(u, torch.cat(states), torch.cat(costates[::-1]), objective)


def best_controls(problem: ControlProblem, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """At every time step the control that maximises the Hamiltonian along a rollout, and its
    maximum."""
    theta, p = rollout.middle()

    def among(candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The best of a table of candidates, a row per time."""
        many = candidates.shape[1]
        with torch.no_grad():
            h = problem.hamiltonian(
                theta.repeat_interleave(many, 0),
                p.repeat_interleave(many, 0),
                candidates.reshape(-1),
            )
        value, index = h.view(-1, many).max(1)
        return candidates.gather(1, index[:, None])[:, 0], value

    own = rollout.u[:, None]
    if isinstance(problem.controls, Tensor):
        return among(torch.cat([own, problem.controls.to(own).expand(problem.parts, -1)], 1))
    low, high = problem.controls
    best, value = among(
        torch.cat(
            [own, torch.linspace(low, high, 65, dtype=own.dtype).expand(problem.parts, -1)], 1
        )
    )
    width = (high - low) / 64
    offsets = torch.linspace(-1, 1, 17, dtype=own.dtype)
    while width > 1e-9 * (high - low):  # look closer around the best point so far
        best, value = among((best[:, None] + width * offsets).clamp(low, high))
        width /= 8
    return best, value


def criterion(problem: ControlProblem, u: Tensor) -> float:
    """C(u) over the whole interval: the mean over time of max_v H - H(u), on u's own states and
    co-states."""
    rollout = run(problem, u)
    return float(_gaps(problem, rollout)[1].mean())


def _gaps(problem: ControlProblem, rollout: Rollout) -> tuple[Tensor, Tensor]:
    best, value = best_controls(problem, rollout)
    with torch.no_grad():
        own = problem.hamiltonian(*rollout.middle(), rollout.u)
    return best, (value - own).clamp_min(0)


def solve(
    problem: ControlProblem, u0: Tensor, *, iterations: int = 100, tolerance: float = 1e-10
) -> Rollout:
    """The method of successive approximations from the controls u0."""
    rollout = run(problem, u0)
    for _ in range(iterations):
        best, gap = _gaps(problem, rollout)
        if float(gap.mean()) <= tolerance:
            break
        order = gap.argsort(descending=True)
        fraction = 1.0
        while True:
            # Controls with the largest gaps change first. Unlike a step of partial length, this
            # also works for discrete controls.
            changed = rollout.u.clone()
            chosen = order[: max(1, round(fraction * len(order)))]
            changed[chosen] = best[chosen]
            candidate = run(problem, changed)
            if candidate.objective < rollout.objective:
                rollout = candidate
                break
            if fraction * len(order) <= 1:
                return rollout
            fraction /= 2
    return rollout
