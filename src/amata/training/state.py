"""Where a run stands, and what it has spent."""

from dataclasses import dataclass, field

SPENT = (
    "train_seconds",
    "compile_seconds",
    "data_seconds",
    "grad_evals",
    "first_layer_evals",
    "images",
    "probe_evals",
    "lr_scale",
    "extra_steps",
)
"""What going back to an earlier state does not give back: what was spent, and what the guard has
changed."""


@dataclass
class TrainState:
    """`batch` batches of `epoch` are done."""

    epoch: int = 0
    batch: int = 0
    train_seconds: float = 0.0
    compile_seconds: float = 0.0
    """Spent on compiling and recording, beside the training time."""
    data_seconds: float = 0.0
    """Of the training time, what was spent waiting for data."""
    grad_evals: int = 0
    first_layer_evals: int = 0
    images: int = 0
    best_epoch: int | None = None
    best_accuracy: float | None = None
    rows: int = 0
    ema_steps: int = 0
    guard_robust: float | None = None
    """The accuracy under the guard's probe after the last good epoch."""
    guard_clean: float = 0.0
    """The best accuracy of the weights on the guard's images so far."""
    lr_scale: float = 1.0
    """What the guard has multiplied the learning rate by."""
    extra_steps: int = 0
    """Inner steps added to the schedule's by the guard."""
    probe_evals: int = 0
    """Of the gradient evaluations, those that a closed-loop schedule has spent on probing."""
    chosen: list[float] | None = None
    """The control (K, alpha) that a closed-loop schedule chose for this epoch, and its gamma."""
    curves: list[list[list[float]]] = field(default_factory=list)
    """What was probed in each epoch: (K, alpha, value, cost) of each candidate."""

    def __str__(self) -> str:
        """For people, who count epochs from one."""
        return (
            f"epoch {self.epoch + 1}, batch {self.batch}"
            if self.batch
            else f"epoch {self.epoch + 1}"
        )
