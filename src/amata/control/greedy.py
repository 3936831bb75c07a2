"""The greedy criterion C(u, t) = max over v in G of H(v) - H(u): how far the control of an epoch is
from the best candidate.

C >= 0, because u itself is always a candidate, and C = 0 exactly where u maximises the Hamiltonian
over G. All candidates see the same batches, starts and noise. As in the paper, the maximum is taken
for each probe batch and then averaged. With noisy gradients that is biased upwards, so the less
biased difference of the averages is reported too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from amata.batch import Batch
from amata.control.gap import Candidate, Criterion, mean
from amata.control.probing import GradientCost, Probe, RunningCost, StepCost
from amata.engine import ProbeNet
from amata.errors import InputError, missing
from amata.methods import Memory, Method
from amata.quantity import choice, positive, whole
from amata.schedules import Control
from amata.seeds import derive
from amata.threat import Ball, check_ball

Search = Literal["grid", "tpe", "gp"]


@dataclass(frozen=True, kw_only=True)
class ControlSpace:
    """G: every K from 1 to k_max, with steps alpha from `low` to `high`."""

    k_max: int
    low: float
    high: float

    def __post_init__(self) -> None:
        whole(self.k_max, "k_max", 1)
        if positive(self.low, "low") > positive(self.high, "high"):
            raise InputError(
                f"the smallest step size {self.low:g} is above the largest {self.high:g}; swap them"
            )

    @classmethod
    def of(cls, ball: Ball, k_max: int) -> "ControlSpace":
        """The usual range: from a twentieth of the radius to its double, a step from one end of the
        ball to the other."""
        return cls(k_max=k_max, low=ball.eps / 20, high=2 * ball.eps)

    def grid(self, count: int) -> list[float]:
        """`count` step sizes, geometrically spaced."""
        if count == 1:
            return [math.sqrt(self.low * self.high)]
        return [self.low * (self.high / self.low) ** (i / (count - 1)) for i in range(count)]


def maximise(
    measure: Callable[[Control[float]], Candidate],
    space: ControlSpace,
    incumbent: Control[float],
    *,
    gamma: float = 0.04,
    search: Search = "grid",
    alphas: int = 6,
    seed: int = 0,
) -> list[Candidate]:
    """Evaluate every K of G with `alphas` step sizes each, from a grid or proposed by optuna (TPE
    or GP) to maximise H at this gamma. The incumbent comes first in the result."""
    tried = [measure(incumbent)]
    for steps in range(1, space.k_max + 1):

        def of(alpha: float, steps: int = steps) -> float:
            tried.append(measure(Control(steps, alpha)))
            return tried[-1].mean(gamma)

        if search == "grid":
            for alpha in space.grid(alphas):
                of(alpha)
        else:
            _propose(of, space, search, alphas, derive(seed, steps))
    return tried


def _propose(
    of: Callable[[float], float], space: ControlSpace, search: Search, trials: int, seed: int
) -> None:
    try:
        import optuna
    except ImportError:
        raise missing("optuna", f"--search {search}", "search") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kind = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}[search]
    study = optuna.create_study(
        direction="maximize", sampler=kind(seed=seed % 2**31, n_startup_trials=min(4, trials))
    )
    study.optimize(
        lambda trial: of(trial.suggest_float("alpha", space.low, space.high, log=True)),
        n_trials=trials,
    )


def criterion(
    model: nn.Module,
    batches: Sequence[Batch],
    u: Control[float],
    *,
    method: Method,
    ball: Ball,
    space: ControlSpace | None = None,
    cost: RunningCost | None = None,
    z: Control | None = None,
    memory: Memory | None = None,
    search: Search = "grid",
    alphas: int = 6,
    seed: int = 0,
    net: ProbeNet | None = None,
) -> Criterion:
    """C(u) of a model with its present weights, under a method. The model is not changed. Of a
    fractional K, H is the mean over its batches.

    With `z`, the Hamiltonian is the inner-product form with that fixed control. Pass a ProbeNet of
    the model as `net` for other losses, modes or learning rates than the defaults.
    """
    if not batches or not all(isinstance(batch, Batch) for batch in batches):
        raise InputError("the criterion needs a list of at least one amata.Batch")
    check_ball(ball)
    if not isinstance(method, Method):
        raise InputError(f"method = {method!r} must be a method, such as amata.PGD(ball=ball)")
    for name, given, kind in (
        ("space", space, ControlSpace),
        ("cost", cost, RunningCost),
        ("u", u, Control),
        ("z", z, Control),
        ("memory", memory, dict),
        ("net", net, ProbeNet),
    ):
        if not isinstance(given, kind) and (given is not None or name == "u"):
            raise InputError(f"{name} = {given!r} must be of type {kind.__name__}")
    choice(search, "search", get_args(Search))
    alphas = whole(alphas, "alphas", 1, 1000)
    cost = cost or StepCost()
    net = net or ProbeNet(model, share_paths=can_share_paths(search, cost))
    probes = [
        Probe(net, method, batch, memory or {}, derive(seed, i), z)
        for i, batch in enumerate(batches)
    ]

    def measure(v: Control[float]) -> Candidate:
        found = [(share, [probe(part) for probe in probes]) for share, part in v.parts()]
        gains = [sum(share * part[i].value for share, part in found) for i in range(len(probes))]
        price = sum(share * mean([cost.price(m) for m in part]) for share, part in found)
        return Candidate(v, gains, price)

    tried = maximise(
        measure,
        space or ControlSpace.of(ball, max(10, math.ceil(u.steps))),
        u,
        gamma=cost.gamma,
        search=search,
        alphas=alphas,
        seed=seed,
    )
    fosc = feasible = 0.0
    for share, part in u.parts():
        gaps = [probe.gaps(part, ball) for probe in probes]
        fosc += share * mean([float(gap.fosc.mean()) for gap in gaps])
        feasible += share * mean([float(gap.feasible.mean()) for gap in gaps])
    return Criterion(cost.gamma, tried, fosc, feasible)


def can_share_paths(search: Search, cost: RunningCost) -> bool:
    """Whether controls can share ascent paths: proposed step sizes do not repeat, and a cost in
    seconds has to time each control separately."""
    return search == "grid" and isinstance(cost, StepCost | GradientCost)
