"""Where a run is, what it has spent, and what the collapse guard and the schedule decided."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from amata.metrics import Amount, Index, Row, Share
from amata.schedules import Choice, Control, Response


@dataclass
class Spent:
    """The cost of a run so far. The trainer is its only writer."""

    train_seconds: Amount = 0.0
    compile_seconds: Amount = 0.0
    """Compiling and recording graphs; not part of the training time."""
    data_seconds: Amount = 0.0
    """The part of the training time that was spent waiting for data."""
    grad_evals: Index = 0
    """Full-network gradient evaluations, in images, with those for probing."""
    first_layer_evals: Index = 0
    probe_evals: Index = 0
    """Gradient evaluations that a closed-loop schedule spent on probing."""
    images: Index = 0
    """Images trained on."""


@dataclass
class TrainState:
    """`batch` batches of `epoch` are done."""

    epoch: Index = 0
    batch: Index = 0
    spent: Spent = field(default_factory=Spent)
    best_epoch: Index | None = None
    best_accuracy: Share | None = None
    rows: list[Row] = field(default_factory=list)
    """The rows of metrics.jsonl that belong to this state."""
    ema_steps: Index = 0
    guard_robust: Share | None = None
    """Accuracy under the guard's attack: after the last good epoch with single steps; with more
    steps the best so far."""
    guard_loss: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The largest mean training loss of an epoch since the guard attacked."""
    guard_attacks: Index = 0
    """How often it attacked."""
    guard_failed: Share | None = None
    """That accuracy after the last try of this epoch, if it overfitted catastrophically."""
    guard_extra: Annotated[int, Field(ge=0, le=100)] = 0
    """Then: `extra_steps` before the first of these tries."""
    guard_clean: Share = 0.0
    """Best clean accuracy on the guard's images so far."""
    lr_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The guard's factor on the learning rate."""
    extra_steps: Annotated[int, Field(ge=0, le=100)] = 0
    """Inner steps that the guard added to the schedule's."""
    choice: Choice | None = None
    """What a closed-loop schedule chose for this epoch."""
    steps: list[Annotated[float, Field(ge=0, le=10**9)]] = field(default_factory=list)
    """K of every epoch in a run within a given time, which may change it; K alpha is the
    schedule's."""
    earlier: tuple[Index, Annotated[float, Field(ge=0, le=10**9)]] | None = None
    """The batches of this epoch before K changed within it, and their mean K."""
    curves: list[list[Response]] = field(default_factory=list)
    """What was probed in each epoch, one response per candidate."""

    def change_steps(self, steps: list[float]) -> None:
        """Have these K from this batch on."""
        if self.batch and steps[self.epoch] != self.steps[self.epoch]:
            self.earlier = self.batch, self._mean_steps()
        self.steps = steps

    def end_steps(self) -> None:
        """At the end of an epoch within which K changed: its K is the mean."""
        if self.earlier is not None:
            mean = round(self._mean_steps(), 3)
            self.steps, self.earlier = [*self.steps], None
            self.steps[self.epoch] = mean

    def _mean_steps(self) -> float:
        """K of the batches of this epoch so far."""
        k, (n, mean) = self.steps[self.epoch], self.earlier or (0, 0.0)
        return k + (mean - k) * n / self.batch

    def rolled_back(self, now: "TrainState") -> "TrainState":
        """This earlier state, with the rows, the cost and the guard's remedies of `now`."""
        self.spent, self.lr_scale, self.extra_steps = now.spent, now.lr_scale, now.extra_steps
        self.rows, self.steps, self.guard_attacks = now.rows, now.steps, now.guard_attacks
        return self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "TrainState":
        _STATE.validate_json(json.dumps(record), strict=True)  # the types and ranges above
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        known["spent"] = Spent(**record["spent"])
        if record["choice"] is not None:
            control, gamma = record["choice"]
            known["choice"] = Choice(Control(*control), gamma)
        known["curves"] = [
            [Response(Control(*control), value, cost) for control, value, cost in curve]
            for curve in record["curves"]
        ]
        return cls(**known)

    def __str__(self) -> str:
        """For people, who count epochs from one."""
        at = f"epoch {self.epoch + 1}"
        return f"{at}, batch {self.batch}" if self.batch else at


_STATE = TypeAdapter(TrainState)
