"""Progress of training and evaluation: a bar with the time left on a terminal and in a notebook,
plain lines in a log."""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from amata.console.numbers import duration, fit, loss_text, short_count
from amata.console.screens import Log, Notebook, Terminal
from amata.console.streams import err
from amata.errors import InputError, printable
from amata.formatting import short_number, short_steps
from amata.metrics import EpochRow
from amata.reporter import BatchInfo, Reporter, Reporters, RunInfo

DATA_WAIT = 0.05
"""The fraction of training time spent waiting for data above which we report it."""


class ConsoleReporter(Reporter):
    """Progress on stderr; stdout is for results. A terminal and a notebook also get a bar."""

    drawing: ClassVar["ConsoleReporter | None"] = None
    """The one that has the bar: an evaluation inside a training draws no second one."""

    def __init__(self) -> None:
        self.screen: Log | Notebook | Terminal = Log()
        self.drawn = time.monotonic()
        self.text = ""
        self.trained: tuple[float, float | None] | None = None
        """Share and seconds left of the training that is going on."""
        self.info: RunInfo | None = None
        self.study_began = 0.0
        self.skipped = 0.0
        """The share of a study that was done before."""
        self.fresh_run = False

    def __enter__(self) -> Self:
        if ConsoleReporter.drawing is None and (err.is_jupyter or err.is_terminal):
            ConsoleReporter.drawing = self
            self.screen = Notebook() if err.is_jupyter else Terminal()
        return self

    def __exit__(self, *_: object) -> None:
        if ConsoleReporter.drawing is self:
            ConsoleReporter.drawing = None
            self.screen.close()
            self.screen = Log()

    def run(self, info: RunInfo) -> None:
        if self.info is None or info.number == 1:
            self.study_began, self.skipped = time.monotonic(), info.done
        self.info, self.trained, self.fresh_run = info, None, True
        left = self._left(0.0, None)
        after = f", {duration(left)} left" if left is not None else ""
        self.screen.line(f"run {info.number} of {info.total}: {info.name}{after}", "bold")

    def batch(self, info: BatchInfo) -> None:
        if self.fresh_run and self.info is not None:
            # A resumed run has a part behind it, which took no time now.
            first = info.share * (1 - 1 / max(1, info.batch)) if info.epoch == 0 else info.share
            self.skipped += self.info.share * first
            self.fresh_run = False
        self.trained = (info.share, info.seconds_left) if info.share < 1 else None
        if not self._due(""):
            return
        # reading the loss waits for the device, so do it rarely
        loss = f"loss {loss_text(info.loss.item()).strip()}" if info.loss is not None else ""
        parts = [
            (0, f"epoch {info.epoch + 1}/{info.epochs}"),
            (3, f"batch {info.batch}/{info.batches}"),
            (2, f"K {short_steps(info.steps)}"),
            (4, f"alpha {short_number(info.step_size)}"),
            (5, f"{info.size} px" if info.size else ""),
            (1, loss),
        ]
        self._show(parts, info.share, self._left(info.share, info.seconds_left))

    def evaluating(
        self,
        attack: str,
        done: int,
        total: int,
        part: str = "",
        seconds_left: float | None = None,
    ) -> None:
        name = f"{attack} ({part})" if part else attack
        if not self._due(name):
            return
        images = f"{done}/{total} images" if total else f"{done} images"
        share, left = done / total if total else 0.0, seconds_left
        if self.trained is not None:  # a validation is a short part of the training
            share, left = self.trained[0], self._left(*self.trained)
        elif self.info is not None:
            left = self._left(1.0, left)
        self._show([(0, f"evaluating {name}"), (1, images)], share, left)

    def epoch(self, row: EpochRow) -> None:
        valid = "  ".join(
            f"{name} {accuracy:5.1%}" for name, accuracy in row.get("valid", {}).items()
        )
        waiting = (
            row.get("data_seconds", 0.0) / row["train_seconds"] if row["train_seconds"] else 0.0
        )
        parts = [
            (0, f"epoch {row['epoch'] + 1:3d}"),
            (2, f"K {short_steps(row['steps']):<4}"),
            (6, f"alpha {short_number(row['step_size']):<8}"),
            (5, f"{row['size']:3d} px" if "size" in row else ""),
            (1, f"loss {loss_text(row['loss'])}"),
            (3, f"{row['train_seconds']:7.1f} s"),
            (5, f"{short_count(row['grad_evals']):>6} grads"),
            (7, valid and "held-out"),
            (0, valid),
            (4, f"{waiting:.0%} waiting for data" if waiting > DATA_WAIT else ""),
        ]
        self.screen.line(fit(parts, self.screen.width), epoch=True)
        self.drawn = time.monotonic()

    def note(self, text: str) -> None:
        self.screen.line(f"note: {text}")

    def _due(self, name: str) -> bool:
        """Whether to draw: rarely, and at once when another attack begins."""
        changed, self.text = name != self.text, name
        if self.screen.draws_changes and name and changed:
            return True
        return time.monotonic() - self.drawn > self.screen.seconds

    def _show(self, parts: list[tuple[int, str]], share: float, left: float | None) -> None:
        if self.info is not None and self.info.total > 1:
            parts = [(1, f"run {self.info.number}/{self.info.total}"), *parts]
        room, remaining = self.screen.room, f"{duration(left)} left" if left is not None else ""
        self.screen.show(printable(fit(parts, room)), share, remaining)
        self.drawn = time.monotonic()

    def _left(self, share: float, seconds_left: float | None) -> float | None:
        """The time left: of the whole study, by what its part so far took, or of the run."""
        if self.info is None:
            return seconds_left
        done = self.info.done + self.info.share * share
        if done <= self.skipped:
            return seconds_left if self.info.total == 1 else None
        return (time.monotonic() - self.study_began) * (1 - done) / (done - self.skipped)


Progress = bool | Reporter | Sequence[bool | Reporter]


def reporting(progress: Progress, call: str) -> Reporter:
    """The reporter that the argument `progress` of `call` asks for."""
    if isinstance(progress, Reporter):
        return progress
    if isinstance(progress, bool):
        return ConsoleReporter() if progress else Reporter()
    if isinstance(progress, list | tuple):
        return Reporters(*(reporting(one, call) for one in progress))
    raise InputError(
        f"{call}: progress = {progress!r} must be True, False, an amata.Reporter or a list of them"
    )


@contextmanager
def watching(progress: Any, call: str) -> Iterator[Callable[..., None]]:
    """What `call` reports the progress of an evaluation to: `progress` may also be a function with
    the arguments of `Reporter.evaluating`."""
    if callable(progress):
        try:
            inspect.signature(progress).bind("clean", 0, 1, "", None)
        except TypeError:
            raise InputError(
                f"{call}: progress = {progress!r} cannot take the arguments of Reporter.evaluating"
            ) from None
        except ValueError:  # a built-in function without a signature
            pass
        yield progress
        return
    with reporting(progress, call) as reporter:
        yield reporter.evaluating
