"""A counterexample to annealing: adversarial logistic regression with two weights as a control
problem with integer controls.

The adversary moves each point against its margin in K steps of length eps / k_max. This lowers the
margin y <w, x> by eps K / k_max times |w|. Training follows the gradient at the moved points. Each
step costs gamma; the terminal cost is the loss under the full move of eps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from amata.control.pmp import ControlProblem, criterion, run, solve
from amata.report.figures import BLUE, GREY, ORANGE
from page import picture


@dataclass(frozen=True, kw_only=True)
class Logistic:
    eps: float = 0.5
    k_max: int = 5
    gamma: float = 0.002
    horizon: float = 4.0
    parts: int = 40

    @staticmethod
    def points() -> tuple[Tensor, Tensor]:
        """Two classes: the first feature separates them well, the second poorly, and a few points
        are on the wrong side."""
        x = [
            [1.0, 0.3],
            [1.4, -0.2],
            [0.7, 0.5],
            [0.2, 0.6],
            [-0.3, 0.4],
            [-1.1, -0.4],
            [-0.8, 0.1],
            [-1.3, -0.5],
            [-0.2, -0.7],
            [0.4, -0.3],
        ]
        return torch.tensor(x, dtype=torch.float64), torch.tensor(
            [1.0] * 5 + [-1.0] * 5, dtype=torch.float64
        )

    def problem(self) -> ControlProblem:
        x, y = self.points()

        def margins(w: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            length = w.norm(dim=1, keepdim=True).clamp_min(1e-12)
            move = (self.eps * steps / self.k_max)[:, None]
            # each point against its own margin
            moved = x[None] - (y[None] * move)[:, :, None] * (w / length)[:, None]
            return (moved @ w[:, :, None])[:, :, 0] * y[None], moved

        def flow(w: Tensor, steps: Tensor) -> Tensor:
            m, moved = margins(w, steps)
            # -grad_w of the mean loss at the moved points
            return (torch.sigmoid(-m)[:, :, None] * y[None, :, None] * moved).mean(1)

        def robust(w: Tensor) -> Tensor:
            return softplus(
                -margins(w, torch.full((len(w),), float(self.k_max), dtype=torch.float64))[0]
            ).mean(1)

        return ControlProblem(
            flow=flow,
            running=lambda w, steps: self.gamma * steps,
            terminal=robust,
            theta0=torch.tensor([0.1, 1.0], dtype=torch.float64),
            horizon=self.horizon,
            controls=torch.arange(self.k_max + 1, dtype=torch.float64),
            parts=self.parts,
        )

    def report(self) -> dict[str, Any]:
        """Controls, weights and objectives: optimal, without adversary, with the full adversary."""
        problem = self.problem()
        zeros = torch.zeros(self.parts, dtype=torch.float64)
        rollouts = {
            "optimal": solve(problem, zeros),
            "none": run(problem, zeros),
            "full": run(problem, zeros + self.k_max),
        }
        return {
            "t": problem.times().tolist(),
            "k_msa": rollouts["optimal"].u.tolist(),
            "criteria": {name: criterion(problem, rollout.u) for name, rollout in rollouts.items()},
            "objectives": {name: rollout.objective for name, rollout in rollouts.items()},
            "weights": {name: rollout.theta.tolist() for name, rollout in rollouts.items()},
        }


def draw(result: dict[str, Any], path: Path) -> None:
    """The optimal K(t), and the weights under each control."""
    with picture(path, 2, (7.4, 3.0)) as (k, plane):
        k.step(result["t"], result["k_msa"], where="post", color=ORANGE)
        k.set(xlabel="time t", ylabel="inner steps K", title="optimal K")
        for name, colour in (("optimal", ORANGE), ("none", GREY), ("full", BLUE)):
            w = result["weights"][name]
            plane.plot(
                [p[0] for p in w],
                [p[1] for p in w],
                color=colour,
                marker="o",
                ms=2,
                label=f"{name}, objective {result['objectives'][name]:.4f}",
            )
        plane.set(xlabel="w1", ylabel="w2", title="weights during training")
        plane.legend(frameon=False, fontsize=8)
