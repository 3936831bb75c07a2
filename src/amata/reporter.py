"""Progress callbacks. The base class logs messages and ignores the rest; the command line prints
them."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

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
    steps: float
    """K of the epoch, which may be a fraction."""
    step_size: float
    loss: Tensor | None
    share: float
    """The fraction of the run's gradient evaluations done so far, weighed by the pixels of their
    images."""
    seconds_left: float | None
    size: int | None = None
    """The side of the images, if the schedule reduces them."""


class RunInfo(NamedTuple):
    """A run of a study that is about to start."""

    number: int
    """From 1."""
    total: int
    name: str
    done: float
    """The fraction of the study's gradient evaluations before this run."""
    share: float
    """This run's fraction of them; 0 if it is finished already."""


def run_infos(names: Sequence[str], costs: Sequence[float]) -> list[RunInfo]:
    """The runs of a study with these costs, in order."""
    total = sum(costs) or 1.0
    return [
        RunInfo(i + 1, len(names), name, sum(costs[:i]) / total, costs[i] / total)
        for i, name in enumerate(names)
    ]


class Reporter:
    """Progress callbacks of training and evaluation; override the ones you need. It is entered
    before the first callback and left after the last one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Called at the end, also after an error."""

    def run(self, info: RunInfo) -> None:
        """Called before each run of a comparison or another study."""

    def start(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Called when a training starts or resumes, with its name and the tables of its recipe."""

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
        "2 of 4: apgd-t, 812 images left" of AutoAttack. `seconds_left` is for this attack.
        """

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Called when a training and its evaluation are done, with the content of summary.json."""

    def note(self, text: str) -> None:
        """Called with a one-line message for the user; by default it goes to the logger `amata`."""
        log.info(text)


class Reporters(Reporter):
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters
        self.entered = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:  # if one cannot be entered, those before it are left
            for reporter in self.reporters:
                entered.enter_context(reporter)
            self.entered = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)

    def run(self, info: RunInfo) -> None:
        for reporter in self.reporters:
            reporter.run(info)

    def start(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for reporter in self.reporters:
            reporter.start(name, tables)

    def batch(self, info: BatchInfo) -> None:
        for reporter in self.reporters:
            reporter.batch(info)

    def epoch(self, row: EpochRow) -> None:
        for reporter in self.reporters:
            reporter.epoch(row)

    def evaluating(
        self,
        attack: str,
        done: int,
        total: int,
        part: str = "",
        seconds_left: float | None = None,
    ) -> None:
        for reporter in self.reporters:
            reporter.evaluating(attack, done, total, part, seconds_left)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.finish(summary)

    def note(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.note(text)
