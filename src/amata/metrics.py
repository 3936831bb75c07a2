"""The metrics of a run as two typed streams: a row per epoch, and the events between them."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypeGuard

from pydantic import Field
from typing_extensions import TypedDict

LARGEST = 2.0**128
"""The range of float32, which every number of a run fits in; sums and figures must not overflow."""
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
Index = Annotated[int, Field(ge=0, lt=2**63)]
Steps = Index | Amount
Count = Annotated[int, Field(ge=1, lt=2**63)]


class EpochRow(TypedDict):
    """One epoch, as metrics.jsonl holds it. Costs are totals since the start of the run."""

    epoch: Index
    steps: Steps
    """K. Of a fraction, batches take the whole numbers around it in turn."""
    step_size: Finite
    tau: NotRequired[Amount]
    """K alpha of every batch, where K is a fraction and they share it, or the steps are limited."""
    step_size_max: NotRequired[Amount]
    """The longest step, where they are limited."""
    eps: NotRequired[Amount]
    """The training radius, where it changes."""
    size: NotRequired[Count]
    """The side of the training images, where it changes."""
    loss: Finite
    train_seconds: Amount
    compile_seconds: NotRequired[Amount]
    data_seconds: NotRequired[Amount]
    grad_evals: Index
    grad_evals_per_image: Amount
    first_layer_evals: NotRequired[Index]
    lr: Finite
    unix_seconds: NotRequired[Amount]
    """When the training of the epoch ended; runs that trained at the same time slow each other."""
    gamma: NotRequired[Finite]
    """The price of a step that a closed-loop schedule used."""
    probe_evals: NotRequired[Index]
    probed: NotRequired[list[list[float]]]
    """K, alpha, value and cost of each candidate that was probed."""
    valid: NotRequired[dict[str, Share]]
    """Held-out accuracies by attack."""
    valid_n: NotRequired[Count]


class Event(TypedDict):
    """An epoch that the collapse guard rejected, and what was done about it."""

    event: str
    """`catastrophic-overfitting` or `chance-collapse`."""
    action: str
    """`rollback` or `stop`."""
    epoch: Index
    before: Share
    """Accuracy before the epoch, on held-out or on training images."""
    after: Share
    extra_steps: NotRequired[Index]
    lr_scale: NotRequired[Finite]


Row = EpochRow | Event


def is_event(row: Any) -> TypeGuard[Event]:
    return "event" in row


def scalars(row: EpochRow) -> dict[str, float]:
    """The numbers of an epoch, for trackers: `loss`, `valid/pgd-10`, ..."""
    left_out = ("epoch", "unix_seconds")
    flat = {k: v for k, v in row.items() if isinstance(v, int | float) and k not in left_out}
    return flat | {f"valid/{k}": v for k, v in row.get("valid", {}).items()}


def totals(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary.json, for trackers: `train_seconds`, `test/pgd-20`, ..."""
    flat = {k: v for k, v in summary.items() if isinstance(v, int | float)}
    return flat | {f"test/{k}": r["accuracy"] for k, r in summary["evaluation"].items()}
