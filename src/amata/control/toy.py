"""The paper's toy problem, solved three ways: in closed form, by Pontryagin's principle, and
greedily.

l(theta, x) = theta^2 / 2 - (x - theta)^2 / (theta^2 + 1), the data point x = 0. K gradient steps of
length alpha = tau / K from x = 0 end at x = theta - theta q with q = (1 - 2 alpha / (theta^2 +
1))^K, and training under them is the flow

    theta' = -theta + 2 theta q / (theta^2 + 1) - 2 theta^3 q^2 / (theta^2 + 1)^2

with running cost gamma K and terminal cost theta^2 / 2. Inner loops must be stable: alpha <= (1 +
theta^2) / 2. That set depends on the state, so the control here is beta = 2 alpha / (1 + theta^2)
in (0, 1], the step as a fraction of the longest stable one, and K = 2 tau / (beta (1 + theta^2)).

The paper controls alpha and ignores in the co-state that its bound depends on theta. That misses a
term: p' = p - 4 gamma tau theta / (1 + theta^2)^2, because a larger theta saves steps. With it p
may take theta's sign, but then p <= 2 gamma tau theta / (1 + theta^2), so a shorter step gains at
most 0.16 of its cost. For tau > 1 + theta_0^2 the optimum is beta = 1 for every gamma.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amata.control.pmp import ControlProblem, Rollout, criterion, run, solve
from amata.errors import InputError
from amata.quantity import number, positive, whole

MIN_BETA = 0.05
"""The smallest control beta that is considered."""


@dataclass(frozen=True, kw_only=True)
class Toy:
    theta0: float = 1.0
    tau: float = 3.0
    horizon: float = 2.0
    gamma: float = 0.04
    """The cost of a step."""
    parts: int = 100

    def __post_init__(self) -> None:
        number(self.theta0, "theta0")
        for name in ("tau", "horizon", "gamma"):
            positive(getattr(self, name), name)
        whole(self.parts, "parts", 2)
        if abs(self.theta0) > 1000:
            raise InputError(
                f"theta0 = {self.theta0:g} is too large; choose one between -1000 and 1000"
            )
        if self.horizon > 0.3 * self.parts:
            needed = math.ceil(self.horizon / 0.3)
            raise InputError(
                f"{self.parts} time steps are too few for a horizon of {self.horizon:g}; "
                f"raise --parts to {needed}"
            )
        if self.theta0 == 0:
            raise InputError("theta0 = 0 is already the robust minimum; choose another start")
        if self.tau <= 1 + self.theta0**2:
            raise InputError(
                f"tau = {self.tau:g} must be above 1 + theta0^2 = {1 + self.theta0**2:g} for "
                "the closed form to hold"
            )

    def closed_form(self, t: Tensor) -> Tensor:
        """K*(t) = 2 tau / (theta_0^2 e^(-2t) + 1)."""
        return 2 * self.tau / (self.theta0**2 * torch.exp(-2 * t) + 1)

    def first_order(self, t: float) -> float:
        """K*(0) + K*'(0) t, the line that Amata's linear schedule comes from.

        K*' = 4 tau v / (1 + v)^2 with v = theta_0^2 e^(-2t), so the line is 2 tau / (1 + theta_0^2)
        + 4 tau theta_0^2 / (1 + theta_0^2)^2 t: Linear with k_min = K*(0) and k_max its value at
        the horizon. K*'' = -8 tau v (1 - v) / (1 + v)^3, so the error is -4 tau theta_0^2 (1 -
        theta_0^2) / (1 + theta_0^2)^3 t^2 to second order, and of third order for |theta_0| = 1.
        For |theta_0| <= 1 the line is never below K*, so its inner loop is stable."""
        v = self.theta0**2
        return 2 * self.tau / (1 + v) + 4 * self.tau * v / (1 + v) ** 2 * t

    def steps(self, theta: Tensor, beta: Tensor) -> Tensor:
        """K of a control beta at a state theta of shape (N,)."""
        return 2 * self.tau / (beta * (1 + theta**2))

    def problem(self) -> ControlProblem:
        def flow(rows: Tensor, beta: Tensor) -> Tensor:
            theta = rows[:, 0]
            s = theta**2 + 1
            q = (1 - beta) ** self.steps(theta, beta)
            return (-theta + 2 * theta * q / s - 2 * theta**3 * q**2 / s**2)[:, None]

        return ControlProblem(
            flow=flow,
            running=lambda rows, beta: self.gamma * self.steps(rows[:, 0], beta),
            terminal=lambda rows: rows[:, 0] ** 2 / 2,
            theta0=torch.tensor([self.theta0], dtype=torch.float64),
            horizon=self.horizon,
            controls=(MIN_BETA, 1.0),
            parts=self.parts,
        )

    def follow(self, steps: Callable[[Tensor, float], float]) -> Tensor:
        """The controls beta of a rule K(theta, t), along its own states; a K that is too small for
        a stable inner loop is raised to the smallest stable one.

        A control is held for a whole step, so it is the rule's at mid-step: half a step with the
        rule's control at the start predicts the state there. C and the objective then have an
        error of second order in the length of a step; with controls from the start it is of first
        order."""
        problem = self.problem()

        def control(rows: Tensor, t: float) -> Tensor:
            beta = self.steps(rows[:, 0], torch.ones(1)) / steps(rows[0, 0], t)
            return beta.clamp(max=1.0)

        theta, controls = problem.theta0[None], []
        for start, middle in zip(
            problem.times().tolist(), problem.middle_times().tolist(), strict=True
        ):
            halfway, _ = problem.advance(theta, control(theta, start), 0.5)
            controls.append(control(halfway, middle))
            theta, _ = problem.advance(theta, controls[-1])
        return torch.cat(controls)

    def greedy(self) -> Tensor:
        """K(t) of the greedy rule: at each state the control with the highest |grad_theta l|^2 -
        gamma K."""
        problem = self.problem()
        candidates = torch.linspace(MIN_BETA, 1.0, 400, dtype=torch.float64)

        def best(theta: Tensor, _: float) -> float:
            rows = theta.expand(len(candidates), 1)
            h = problem.flow(rows, candidates)[:, 0] ** 2 - problem.running(rows, candidates)
            return float(self.steps(theta, candidates[h.argmax()]))

        return self.steps_of(run(problem, self.follow(best)))

    def linear(self) -> Callable[[float], float]:
        """The line K(t) with the fewest steps in total among those whose inner loop is always
        stable."""
        t = torch.linspace(0, self.horizon, 1001, dtype=torch.float64)
        needed = self.closed_form(t)
        slopes = torch.linspace(
            0, float((needed.diff() / t.diff()).max()), 501, dtype=torch.float64
        )
        starts = (needed[None] - slopes[:, None] * t[None]).amax(1)
        best = int((starts + slopes * self.horizon / 2).argmin())
        start, slope = float(starts[best]), float(slopes[best])
        return lambda at: start + slope * at

    def constant(self) -> float:
        """The smallest constant K whose inner loop is always stable."""
        return float(self.closed_form(torch.tensor(self.horizon, dtype=torch.float64)))

    def steps_of(self, rollout: Rollout) -> Tensor:
        """K(t) of a rollout at mid-step."""
        return self.steps(self.states_of(rollout), rollout.u)

    def states_of(self, rollout: Rollout) -> Tensor:
        """theta(t) of a rollout at mid-step."""
        return self.problem().advance(rollout.theta[:-1], rollout.u, 0.5)[0][:, 0]

    def solve(self) -> Rollout:
        """By successive approximations, starting from half the longest stable step."""
        return solve(self.problem(), torch.full((self.parts,), 0.5, dtype=torch.float64))

    def report(self) -> dict[str, Any]:
        """Everything that `amata toy` prints and draws."""
        problem, rollout = self.problem(), self.solve()
        t = problem.middle_times()
        line, level = self.linear(), self.constant()
        strategies = {
            "optimal": torch.ones(self.parts, dtype=torch.float64),
            "constant": self.follow(lambda _, __: level),
            "linear": self.follow(lambda _, at: line(at)),
            "first_order": self.follow(lambda _, at: self.first_order(at)),
        }
        return {
            "theta0": self.theta0,
            "tau": self.tau,
            "horizon": self.horizon,
            "gamma": self.gamma,
            "t": t.tolist(),
            "k_closed_form": self.closed_form(t).tolist(),
            "k_msa": self.steps_of(rollout).tolist(),
            "k_greedy": self.greedy().tolist(),
            "k_constant": [level] * self.parts,
            "k_linear": [line(at) for at in t.tolist()],
            "k_first_order": [self.first_order(at) for at in t.tolist()],
            "theta": self.states_of(rollout).tolist(),
            "theta_closed_form": (self.theta0 * torch.exp(-t)).tolist(),
            "c_msa": criterion(problem, rollout.u),
            **{f"c_{name}": criterion(problem, u) for name, u in strategies.items()},
        }
