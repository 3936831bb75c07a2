"""The metrics of a run as two typed streams: a row per epoch, and the events between them."""

from typing import Any, NotRequired, TypedDict, TypeGuard


class EpochRow(TypedDict):
    """One epoch, as metrics.jsonl holds it. Costs are totals since the start of the run."""

    epoch: int
    steps: int
    step_size: float
    loss: float
    train_seconds: float
    compile_seconds: NotRequired[float]
    data_seconds: float
    grad_evals: int
    grad_evals_per_image: float
    first_layer_evals: NotRequired[int]
    lr: float
    unix_seconds: NotRequired[float]
    """When the training of the epoch ended; runs that trained at the same time slow each other."""
    gamma: NotRequired[float]
    """The price of a step that a closed-loop schedule used."""
    probe_evals: NotRequired[int]
    probed: NotRequired[list[list[float]]]
    """K, alpha, value and cost of each candidate that was probed."""
    valid: NotRequired[dict[str, float]]
    """Held-out accuracies by attack."""
    valid_n: NotRequired[int]


class Event(TypedDict):
    """An epoch that the collapse guard rejected, and what was done about it."""

    event: str
    """`catastrophic-overfitting` or `chance-collapse`."""
    action: str
    """`rollback` or `stop`."""
    epoch: int
    before: float
    """Held-out accuracy before the epoch."""
    after: float
    extra_steps: NotRequired[int]
    lr_scale: NotRequired[float]


Row = EpochRow | Event


def is_event(row: Any) -> TypeGuard[Event]:
    return "event" in row
