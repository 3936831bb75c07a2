"""Progress callbacks. The base class ignores them; the command line prints them."""

from typing import NamedTuple

from torch import Tensor

from amata.metrics import EpochRow


class BatchInfo(NamedTuple):
    """The state of training after a batch. Reading `loss` waits for the device."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    steps: int
    step_size: float
    loss: Tensor | None
    share: float
    """The fraction of the run's gradient evaluations done so far."""
    seconds_left: float | None


class Reporter:
    """Progress callbacks of training and evaluation; override the ones you need."""

    def batch(self, info: BatchInfo) -> None:
        """Called after every batch."""

    def epoch(self, row: EpochRow) -> None:
        """Called after every epoch with its row of metrics.jsonl."""

    def evaluating(
        self,
        attack: str,
        done: int,
        total: int,
        part: str = "",
        seconds_left: float | None = None,
    ) -> None:
        """Called during validation and evaluation, when an attack begins a batch and when it ends.

        `total` is 0 if it is unknown. `part` is what is running of an attack with parts, such as
        the four attacks of AutoAttack. `seconds_left` is for this attack.
        """

    def note(self, text: str) -> None:
        """Called with a one-line message for the user."""
