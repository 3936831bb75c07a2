"""The training loop: epochs, validation, checkpoints and the collapse guard around a Trainer."""

import contextlib
import math
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from amata.data import ImageSet
from amata.distributed import current
from amata.errors import AmataError, InputError, Interrupted
from amata.evaluation import Result, parse_attack
from amata.metrics import EpochRow, Event, is_event
from amata.recipes import Recipe
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder, resume_call
from amata.runs.files import save_tensors
from amata.schedules import Control
from amata.training.batches import Batches, held_out_batches, training_batches
from amata.training.checks import recipe_notes
from amata.training.deadline import Deadline
from amata.training.described import describe_code
from amata.training.device import resolve_device
from amata.training.failure import ATTACK, HELD_OUT, TRAINING, Failure
from amata.training.fitted import Fitted
from amata.training.guard import IMAGES, Guard, guard_batches
from amata.training.interrupt import Interrupt
from amata.training.prepared import run_settings
from amata.training.resuming import find_checkpoint, restore, resumed_notes
from amata.training.rows import epoch_row
from amata.training.saver import Saver
from amata.training.tensorboard import TensorBoard
from amata.training.trainer import Snapshot, Trainer
from amata.training.validation import validate
from amata.training.wall import WallClock, slow_start
from amata.training.work import epoch_work

DIVERGED = 1000.0
"""A training loss above this is worth a note: that of a network which knows nothing is the
logarithm of the number of classes."""


class BudgetSpent(AmataError):
    """Epochs are left, and no gradient evaluations for them."""

    def __init__(self, message: str, grad_evals: int) -> None:
        super().__init__(message)
        self.grad_evals = grad_evals


def train_model(
    model: nn.Module,
    train: Any,
    valid: Any,
    recipe: Recipe,
    *,
    run: RunFolder | None = None,
    reporter: Reporter | None = None,
    wall: WallClock | None = None,
    trainer: Trainer | None = None,
    budget: float = math.inf,
    deadline: Deadline | None = None,
) -> Fitted:
    """Train `model` as the recipe's [method], [schedule], [optim] and [train] say.

    The public `amata.fit` calls this with a recipe made of its arguments. A `run` that has
    checkpoints is resumed. `trainer` is the model's from `prepare`. `budget` is in gradient
    evaluations: where it is spent, no further epoch begins, and `BudgetSpent` is raised.
    With a `deadline`, K may change to end on time.
    """
    wall = wall or WallClock()
    device = resolve_device(recipe.train.device)
    if not current().is_main:
        run, reporter = None, None  # rank 0 writes and reports
    lock = run.lock() if run else contextlib.nullcontext()
    batches = training_batches(train, recipe, device)
    if len(batches) == 0:
        raise InputError(
            "the training data are smaller than one batch; lower data.batch_size or set "
            "data.drop_last = false"
            if isinstance(train, ImageSet)
            else "the training loader gives no batches: it is empty, or drops the only one"
        )
    with lock, run_settings(recipe, device):
        if trainer is None:
            trainer = Trainer(model, batches, recipe, device)
        else:
            trainer.use(batches)
        with Interrupt() as interrupt, Saver(trainer, run) as saver:
            held_out = held_out_batches(valid, recipe, device)
            trainer.hold_out(held_out)
            reporter = reporter or Reporter()
            loop = _Loop(trainer, held_out, saver, reporter, interrupt, wall)
            if recipe.train.guard != "ignore":
                seen_on = TRAINING if valid is None else HELD_OUT
                loop.guard_on(guard_batches(trainer, valid), seen_on)
            loop.deadline = deadline
            return loop.run_all(budget)


class _Loop:
    """The epochs of one training, and what is recorded around them."""

    def __init__(
        self,
        trainer: Trainer,
        valid: Batches | None,
        saver: Saver,
        reporter: Reporter,
        interrupt: Interrupt,
        wall: WallClock,
    ) -> None:
        self.trainer, self.valid, self.saver = trainer, valid, saver
        self.reporter, self.interrupt, self.wall = reporter, interrupt, wall
        self.recipe, self.ranks, self.run = trainer.recipe, trainer.ranks, saver.run
        self.epochs: list[EpochRow] = []
        self.events: list[Event] = []
        self.noted_loss = False
        self.noted_skipped = False
        self.deadline: Deadline | None = None
        self.guard: Guard | None = None
        # The time left follows the schedule. Epochs of a closed-loop schedule are assumed to cost
        # the same.
        self.costs = (
            epoch_work(self.recipe, trainer.plan, trainer.side)
            if trainer.plan is not None
            else [1.0] * self.recipe.train.epochs
        )
        # Parsed now, so that a misspelt attack costs no epoch.
        self.valid_attack = parse_attack(self.recipe.train.valid_attack).name

    def run_all(self, budget: float) -> Fitted:
        trainer = self.trainer
        trainer.net.note = self.reporter.note
        if self.saver.recorded:
            self._resume()
        if trainer.device.type == "cuda" or self.ranks.size > 1:
            processes = f", {self.ranks.size} processes" if self.ranks.size > 1 else ""
            self.reporter.note(trainer.net.describe() + processes)
        if trainer.device.type == "cuda" and (text := slow_start(torch)):
            self.reporter.note(text)
        for text in recipe_notes(self.recipe, trainer.plan):
            self.reporter.note(text)
        if self.guard is None and self.recipe.train.guard != "ignore" and trainer.may_collapse:
            self.reporter.note(
                "the collapse guard is off: batches are read for training only, and nothing is "
                "held out; single attack steps may collapse, so pass a validation set"
            )
        self.reporter.start(
            self.run.path.name if self.run else self.recipe.name, self.recipe.tables
        )
        folder = self.run.path if self.run and self.recipe.train.tensorboard else None
        with TensorBoard(folder, trainer.state.epoch, self.reporter.note) as board:
            while trainer.state.epoch < self.recipe.train.epochs:
                if (spent := trainer.state.spent.grad_evals) >= budget:
                    raise BudgetSpent(f"the budget is spent before {trainer.state}", spent)
                if self.deadline is not None:
                    self._follow_clock(self.deadline)
                self._keep_epoch()
                if self._train_epoch():
                    self._stop()
                with self.wall.counting("save"):
                    if (row := self._finish_epoch()) is not None:
                        board.add(row)
        self._keep_epoch()
        with self.wall.counting("save"):
            if (best := self.saver.finish()) is not None:
                trainer.result.load_state_dict(best)
        if self.ranks.sum([self.interrupt.number is not None])[0]:
            self._stop()
        state, account = trainer.state, trainer.state.spent
        return Fitted(
            trainer.result.eval(),
            self.epochs,
            self.events,
            state.best_epoch,
            account.train_seconds,
            account.grad_evals,
            account.images,
        )

    def _train_epoch(self) -> bool:
        """Train the rest of the epoch. True if it was interrupted."""
        spent, wall = self.trainer.state.spent, self.wall
        before = spent.train_seconds, spent.compile_seconds, spent.data_seconds
        with wall.counting("train"):
            started = wall.spent()
            stopped = self.trainer.train_epoch(self._after_batch)
            elapsed = wall.spent() - started
            now = spent.train_seconds, spent.compile_seconds, spent.data_seconds
            trained, compiled, waited = (b - a for a, b in zip(before, now, strict=True))
            wall.move(compiled, "compile")
            wall.move(waited, "data")
            wall.move(elapsed - trained - compiled, "start")  # the checks of the first batch
        return stopped

    def _resume(self) -> None:
        def checkpoint(note: Callable[[str], None], epoch: int | None = None) -> Snapshot | None:
            return find_checkpoint(self.run, self.recipe, self.ranks, note, epoch)

        loaded, state = checkpoint(self.reporter.note), self.trainer.state
        if loaded is not None:
            restore(self.trainer, loaded)
            state = self.trainer.state
            self.saver.place = (state.epoch, state.batch)
        self.epochs = [row for row in state.rows if not is_event(row)]  # type: ignore[misc]
        self.events = [row for row in state.rows if is_event(row)]
        if self.run:
            if loaded is None and self.run.was_started():
                self.reporter.note("there is no checkpoint: training starts from the beginning")
            self.run.write_rows(state.rows)
            self.run.promote(state.best_epoch)
            self.run.drop_epochs_after(state.epoch)
            code = describe_code(self.recipe, self.trainer.model)
            changed = self.run.record_start(self.trainer.device, code)
            for note in changed if loaded is not None else []:
                self.reporter.note(note)
        if loaded is None:
            return
        if self.guard is not None:
            # Without this checkpoint a failure in this epoch can only stop the run.
            with contextlib.suppress(AmataError):
                self.guard.good = checkpoint(lambda _: None, state.epoch)
        if self.deadline is None and self.trainer.follow_plan():
            self.reporter.note("the time that was given has passed: K follows the plan again")
        for note in resumed_notes(self.trainer):
            self.reporter.note(note)

    def _after_batch(self, u: Control[float]) -> bool:
        state = self.trainer.state
        self.reporter.batch(self._batch_info(u))
        self.saver.check()
        stop = self.interrupt.number is not None
        overdue = time.monotonic() - self.saver.time > 60 * self.recipe.train.save_minutes
        save = self.saver.idle and overdue
        if self.ranks.size > 1:  # all processes stop, or save, together
            stop, save = (total > 0 for total in self.ranks.sum([stop, save]))
        if stop:
            return True
        if self.deadline is not None and self.deadline.is_due(
            state.batch, len(self.trainer.batches)
        ):
            self.trainer.check_finite()  # waits for the device
            self._follow_clock(self.deadline)
        if save and state.batch < len(self.trainer.batches):
            self.trainer.stop_clock()
            with self.wall.counting("save"):
                self.saver.checkpoint(start=self._epoch_start())
            self.trainer.start_clock()
        return False

    def _follow_clock(self, deadline: Deadline) -> None:
        deadline.follow(self.trainer.state, len(self.trainer.batches), self.reporter.note)

    def _batch_info(self, u: Control[float]) -> BatchInfo:
        state, epochs = self.trainer.state, self.recipe.train.epochs
        n = len(self.trainer.batches)
        total = sum(self.costs)
        done = sum(self.costs[: state.epoch]) + self.costs[state.epoch] * state.batch / n
        left = state.spent.train_seconds * (total - done) / done if done else None
        loss = self.trainer.net.last_loss
        return BatchInfo(
            state.epoch,
            epochs,
            state.batch,
            n,
            u.steps,
            u.step_size,
            loss,
            done / total,
            left,
            u.size,
        )

    def _finish_epoch(self) -> EpochRow | None:
        """Check, validate and record the epoch. None if the guard rejected it."""
        trainer, state = self.trainer, self.trainer.state
        row = epoch_row(trainer)
        if self.guard is not None:
            with self.wall.counting("valid"):
                failure = self.guard.check()
            if failure is not None:
                self._recover(self.guard, failure)
                return None
        last = state.epoch == self.recipe.train.epochs - 1
        if self.valid is not None and (
            last or (state.epoch + 1) % self.recipe.train.valid_every == 0
        ):
            with self.wall.counting("valid"):
                results = self._validate(self.valid, ("clean", self.valid_attack))
            row["valid"] = {name: result.accuracy for name, result in results.items()}
            row["valid_n"] = results["clean"].n
            if bad := max(result.non_finite for result in results.values()):
                self.reporter.note(
                    f"epoch {state.epoch + 1}: the logits of {bad} of {row['valid_n']} held-out "
                    "images are not finite; they count as wrong"
                )
            by_clean = self.recipe.method.chosen_by == "clean"
            self._keep_if_best(row["valid"]["clean" if by_clean else self.valid_attack])
        self.epochs.append(row)
        self._record(row)
        if row["loss"] > DIVERGED and not self.noted_loss:
            self.noted_loss = True
            self.reporter.note(
                f"the loss is {row['loss']:.3g} in epoch {state.epoch + 1}: training diverges; "
                f"start a new run with a lower optim.lr (now {self.recipe.optim.lr:g}), or check "
                "the data"
            )
        trainer.next_epoch()
        if self.guard is not None and not last:
            self.guard.remember()
        if not self.saver.checkpoint(now=last) and not self.noted_skipped:
            self.noted_skipped = True
            self.reporter.note(
                "not every epoch is saved: the disk is slow, or epochs are short for checkpoints "
                f"of {self.saver.copies.size / 1e6:,.1f} MB"
            )
        self.reporter.epoch(row)
        return row

    def _validate(
        self,
        images: Batches,
        attacks: tuple[str, ...],
        limit: int | None = None,
        model: nn.Module | None = None,
    ) -> dict[str, Result]:
        def watch(
            attack: str, done: int, total: int, part: str, seconds_left: float | None
        ) -> None:
            self.reporter.evaluating(attack, done, total, part, seconds_left)
            if self.interrupt.number is not None and self.ranks.size == 1:
                self._stop()

        return validate(self.trainer, images, attacks, limit, model, watch)

    def guard_on(self, images: Batches | None, seen_on: str) -> None:
        """Watch for collapses on these images."""
        if images is not None:
            self.guard = Guard(self.trainer, self._guard_accuracy, images, seen_on)

    def _guard_accuracy(self, images: Batches) -> float:
        """The guard tests the weights themselves: EMA weights show a failure epochs later."""
        return self._validate(images, (ATTACK,), IMAGES, self.trainer.model)[ATTACK].accuracy

    def _recover(self, guard: Guard, failure: Failure) -> None:
        event = guard.event(failure)
        self.events.append(event)
        self._record(event)
        try:
            change = guard.go_back(failure, event)
        except AmataError:
            if guard.good is not None:  # it may not be on the disk yet
                self.saver.checkpoint(now=True)
            raise
        state = self.trainer.state
        self.reporter.note(f"{failure}; back to the end of epoch {state.epoch}, now with {change}")
        self.saver.discard_after(state.epoch)
        self.saver.checkpoint(now=True)

    def _record(self, row: EpochRow | Event) -> None:
        self.trainer.state.rows.append(row)
        if self.run:
            self.run.append_row(row)

    def _keep_if_best(self, accuracy: float) -> None:
        state = self.trainer.state
        best = state.best_accuracy
        # Of equal epochs the last is kept: on few held-out images many are equal, and it has learnt
        # most.
        if best is not None and accuracy < best:
            return
        state.best_epoch, state.best_accuracy = state.epoch, accuracy
        self.saver.keep_best()

    def _keep_epoch(self) -> None:
        """Save the state that the coming epoch starts with, for `amata criterion`, if the recipe
        says so."""
        state = self.trainer.state
        if not self.saver.recorded or not self.recipe.train.keep_epochs or state.batch != 0:
            return
        parts = ("model/", "ema/", "memory/")
        with self.wall.counting("save"):
            tensors = {k: v for k, v in self.trainer.snapshot()[0].items() if k.startswith(parts)}
            if self.run and not self.run.epoch_file(state.epoch).is_file():
                save_tensors(self.run.epoch_file(state.epoch), tensors, {"epoch": state.epoch})

    def _epoch_start(self) -> Snapshot | None:
        """Where the guard would go back to."""
        return self.guard.good if self.guard is not None else None

    def _stop(self) -> None:
        number = self.interrupt.number or signal.SIGTERM  # or another process was interrupted
        if not self.saver.recorded:
            raise Interrupted(
                "interrupted; nothing was saved: with run=FOLDER, fit() can be resumed", number
            )
        self.saver.checkpoint(now=True, start=self._epoch_start())
        if self.run is None:
            raise Interrupted("interrupted together with rank 0", number)
        call = resume_call(self.run.path, self.recipe)
        if self.trainer.state.epoch == self.recipe.train.epochs:
            text = "interrupted after the last epoch; training is done and saved"
            raise Interrupted(f"{text}, finish with {call}", number)
        raise Interrupted(f"interrupted in {self.trainer.state}; resume with {call}", number)
