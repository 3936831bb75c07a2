"""Progress callbacks. The base class logs messages and ignores the rest; the command line prints
them."""

import logging
from typing import NamedTuple

from torch import Tensor

from amata.metrics import EpochRow

log = logging.getLogger("amata")
log.addHandler(logging.NullHandler())  # the program decides what is shown, and where


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

    def evaluating(self, attack: str, done: int, total: int) -> None:
        """Called during validation and evaluation."""

    def note(self, text: str) -> None:
        """Called with a one-line message for the user; by default it goes to the logger `amata`."""
        log.info(text)
