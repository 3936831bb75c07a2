"""The greedy criterion C(u, t) = max over v in G of H(v) - H(u): how far the control of an epoch is
from the best candidate.

C >= 0, because u itself is always a candidate, and C = 0 exactly where u maximises the Hamiltonian
over G. All candidates see the same batches, starts and noise. As in the paper, the maximum is taken
for each probe batch and then averaged. With noisy gradients that is biased upwards, so the less
biased difference of the averages is reported too.

H has two terms, |g|^2 and gamma times the price. They are kept apart for every candidate, so C
follows for any gamma without measuring again. C itself is a sum of two terms: what the best control
gains in |g|^2, and what u costs more than it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from torch import nn

from amata.batch import Batch
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


class Candidate(NamedTuple):
    """A control, with the two terms of its Hamiltonian."""

    control: Control
    gains: list[float]
    """|g|^2 on each probe batch, or <g, g_z> with a fixed z."""
    price: float
    """R(u) at gamma = 1, averaged over the batches."""

    def values(self, gamma: float) -> list[float]:
        """The Hamiltonian on each probe batch."""
        return [gain - gamma * self.price for gain in self.gains]

    def mean(self, gamma: float) -> float:
        return mean(self.values(gamma))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def maximise(
    measure: Callable[[Control], Candidate],
    space: ControlSpace,
    incumbent: Control,
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


@dataclass(frozen=True)
class Criterion:
    """C of one control at one state of the network, over several probe batches."""

    gamma: float
    tried: list[Candidate]
    """All controls that were measured: u comes first."""
    fosc: float
    """The mean FOSC of the inner maximisation under u, for comparison."""

    def at(self, gamma: float) -> "Criterion":
        """The criterion at another gamma, from the same measurements."""
        return replace(self, gamma=gamma)

    @property
    def control(self) -> Control:
        return self.tried[0].control

    @cached_property
    def _own(self) -> list[float]:
        return self.tried[0].values(self.gamma)

    @cached_property
    def _best(self) -> list[tuple[float, Candidate]]:
        """The highest Hamiltonian of each batch, and the candidate that reaches it."""
        values = [t.values(self.gamma) for t in self.tried]
        tops = (max(range(len(values)), key=lambda i: values[i][b]) for b in range(len(self._own)))
        return [(values[top][b], self.tried[top]) for b, top in enumerate(tops)]

    @property
    def per_batch(self) -> list[float]:
        return [high - own for (high, _), own in zip(self._best, self._own, strict=True)]

    @property
    def c(self) -> float:
        return mean(self.per_batch)

    @property
    def c_stderr(self) -> float | None:
        return standard_error(self.per_batch)

    @property
    def c_price(self) -> float:
        """The price term of C: gamma times what u costs more than the best control of a batch."""
        return self.gamma * mean([self.tried[0].price - best.price for _, best in self._best])

    @property
    def c_gain(self) -> float:
        """The gradient term of C: how far |g|^2 of u is below that of the best control."""
        own = self.tried[0].gains
        return mean([best.gains[b] - own[b] for b, (_, best) in enumerate(self._best)])

    @property
    def hamiltonian(self) -> float:
        """H(u), averaged over the batches."""
        return mean(self._own)

    @property
    def best_hamiltonian(self) -> float:
        """max_v H(v), averaged over the batches."""
        return mean([high for high, _ in self._best])

    @cached_property
    def _best_mean(self) -> Candidate:
        return max(self.tried, key=lambda t: t.mean(self.gamma))

    @property
    def argmax(self) -> Control:
        """The control with the highest average Hamiltonian."""
        return self._best_mean.control

    @property
    def of_means(self) -> float:
        """The criterion of the averages, max_v mean H(v) - mean H(u): less biased than a maximum
        for each batch."""
        return self._best_mean.mean(self.gamma) - self.hamiltonian

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.control.steps,
            "step_size": self.control.step_size,
            "c": self.c,
            "c_stderr": self.c_stderr,
            "c_of_means": self.of_means,
            "c_gain": self.c_gain,
            "c_price": self.c_price,
            "hamiltonian": self.hamiltonian,
            "best_hamiltonian": self.best_hamiltonian,
            "best_steps": self.argmax.steps,
            "best_step_size": self.argmax.step_size,
            "fosc": self.fosc,
            "per_batch": self.per_batch,
            "tried": {
                "steps": [t.control.steps for t in self.tried],
                "step_size": [t.control.step_size for t in self.tried],
                "price": [t.price for t in self.tried],
                "gain": [t.gains for t in self.tried],
            },
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], gamma: float) -> "Criterion":
        """What `to_dict` wrote, at any gamma."""
        columns = row["tried"]
        controls = map(Control, columns["steps"], columns["step_size"])
        tried = zip(controls, columns["gain"], columns["price"], strict=True)
        return cls(gamma, [Candidate(*candidate) for candidate in tried], row["fosc"])


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for a single value."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


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

    def measure(v: Control) -> Candidate:
        found = [probe(v) for probe in probes]
        return Candidate(v, [m.value for m in found], mean([cost.price(m) for m in found]))

    tried = maximise(
        measure,
        space or ControlSpace.of(ball, max(10, u.steps)),
        u,
        gamma=cost.gamma,
        search=search,
        alphas=alphas,
        seed=seed,
    )
    fosc = mean([float(probe.fosc(u, ball).mean()) for probe in probes])
    return Criterion(cost.gamma, tried, fosc)


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


def strategy(per_batch: Sequence[Sequence[float]], of_means: Sequence[float]) -> StrategyCriterion:
    """The criterion of a schedule from `per_batch` and `of_means` of its epochs. Epochs share their
    probe batches, so the standard error is over batches."""
    means = [mean(values) for values in zip(*per_batch, strict=True)]
    return StrategyCriterion(mean(means), standard_error(means), mean(of_means))
