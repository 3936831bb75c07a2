"""What a run tells while it goes on. The base class is silent; the command line has one that
draws."""

from typing import NamedTuple

from torch import Tensor

from amata.metrics import EpochRow


class Moment(NamedTuple):
    """A glimpse of training after a batch. `loss` stays on its device until somebody reads it."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    steps: int
    step_size: float
    loss: Tensor | None
    share: float
    """Of the whole run's gradient evaluations, how much is done."""
    seconds_left: float | None


class Reporter:
    def batch(self, moment: Moment) -> None:
        """After every batch."""

    def epoch(self, row: EpochRow) -> None:
        """After every epoch, with its row of metrics.jsonl."""

    def evaluating(self, attack: str, done: int, total: int) -> None:
        """During validation and evaluation."""

    def note(self, text: str) -> None:
        """Something the user should know, in one line."""
