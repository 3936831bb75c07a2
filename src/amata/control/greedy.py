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
from typing import Any, Literal, NamedTuple, get_args

from torch import nn

from amata.batch import Batch
from amata.control.probing import GradientCost, Probe, RunningCost, StepCost, hamiltonian
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


class Candidate(NamedTuple):
    """A control and its Hamiltonian on each probe batch."""

    control: Control
    values: list[float]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


def maximise(
    value: Callable[[Control], list[float]],
    space: ControlSpace,
    incumbent: Control,
    *,
    search: Search = "grid",
    alphas: int = 6,
    seed: int = 0,
) -> list[Candidate]:
    """Evaluate every K of G with `alphas` step sizes each, from a grid or proposed by optuna (TPE
    or GP). The incumbent comes first in the result."""
    tried = [Candidate(incumbent, value(incumbent))]
    for steps in range(1, space.k_max + 1):

        def of(alpha: float, steps: int = steps) -> float:
            tried.append(Candidate(Control(steps, alpha), value(Control(steps, alpha))))
            return tried[-1].mean

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


@dataclass(frozen=True)
class Criterion:
    """C of one control at one state of the network, over several probe batches."""

    control: Control
    per_batch: list[float]
    hamiltonian: float
    """H(u), averaged over the batches."""
    best_hamiltonian: float
    """max_v H(v), averaged over the batches."""
    argmax: Control
    """The control with the highest average Hamiltonian."""
    of_means: float
    """The criterion of the averages, max_v mean H(v) - mean H(u): less biased than a maximum for
    each batch."""
    fosc: float
    """The mean FOSC of the inner maximisation under u, for comparison. It ignores [0, 1]."""
    feasible_gap: float
    """The mean feasible gap, which is at most FOSC: only moves in [0, 1] count."""

    @property
    def c(self) -> float:
        return sum(self.per_batch) / len(self.per_batch)

    @property
    def c_stderr(self) -> float | None:
        return standard_error(self.per_batch)

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.control.steps,
            "step_size": self.control.step_size,
            "c": self.c,
            "c_stderr": self.c_stderr,
            "c_of_means": self.of_means,
            "hamiltonian": self.hamiltonian,
            "best_hamiltonian": self.best_hamiltonian,
            "best_steps": self.argmax.steps,
            "best_step_size": self.argmax.step_size,
            "fosc": self.fosc,
            "feasible_gap": self.feasible_gap,
            "per_batch": self.per_batch,
        }


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for a single value."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def criterion(
    model: nn.Module,
    batches: Sequence[Batch],
    u: Control,
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
    """C(u) of a model with its present weights, under a method. The model is not changed.

    With `z`, the Hamiltonian is the inner-product form with that fixed control. Pass a ProbeNet of
    the model as `net` for other losses or modes than the defaults.
    """
    if not batches or not all(isinstance(batch, Batch) for batch in batches):
        raise InputError("the criterion needs a list of at least one amata.Batch")
    check_ball(ball)
    if not isinstance(method, Method):
        raise InputError(f"method = {method!r} must be a method, such as amata.PGD(ball=ball)")
    if cost is not None and not callable(cost):
        raise InputError(f"cost = {cost!r} must be a function of what was measured")
    for name, given, kind in (
        ("space", space, ControlSpace),
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

    def value(v: Control) -> list[float]:
        return [hamiltonian(probe(v), cost) for probe in probes]

    tried = maximise(
        value,
        space or ControlSpace.of(ball, max(10, u.steps)),
        u,
        search=search,
        alphas=alphas,
        seed=seed,
    )
    best = max(tried, key=lambda t: t.mean)
    own = tried[0]
    highest = [max(values) for values in zip(*(t.values for t in tried), strict=True)]
    gaps = [probe.gaps(u, ball) for probe in probes]
    return Criterion(
        control=u,
        per_batch=[high - h for high, h in zip(highest, own.values, strict=True)],
        hamiltonian=own.mean,
        best_hamiltonian=sum(highest) / len(highest),
        argmax=best.control,
        of_means=best.mean - own.mean,
        fosc=sum(float(gap.fosc.mean()) for gap in gaps) / len(gaps),
        feasible_gap=sum(float(gap.feasible.mean()) for gap in gaps) / len(gaps),
    )


def can_share_paths(search: Search, cost: RunningCost) -> bool:
    """Whether controls can share ascent paths: proposed step sizes do not repeat, and a cost in
    seconds has to time each control separately."""
    return search == "grid" and isinstance(cost, StepCost | GradientCost)


class StrategyCriterion(NamedTuple):
    """C of a whole schedule: the mean over its epochs and the probe batches, with the standard
    error over the batches."""

    c: float
    c_stderr: float | None
    c_of_means: float


def strategy(epochs: Sequence[Criterion]) -> StrategyCriterion:
    """The criterion of a schedule from those of its epochs. Epochs share their probe batches, so
    the standard error is over batches."""
    per_batch = [
        sum(values) / len(epochs) for values in zip(*(e.per_batch for e in epochs), strict=True)
    ]
    return StrategyCriterion(
        sum(per_batch) / len(per_batch),
        standard_error(per_batch),
        sum(e.of_means for e in epochs) / len(epochs),
    )
