"""fit(): train a model by a recipe, choose the best on held-out images, and leave a run folder that
can be resumed."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata.distributed import Ranks, current
from amata.errors import AmataError, InputError
from amata.evaluation import Part, Result, evaluate, parse_attack
from amata.recipes import Recipe, load
from amata.reporter import BatchInfo, Reporter
from amata.runs.checkpoint import load_checkpoint
from amata.runs.files import save_tensors
from amata.runs.folder import RunFolder
from amata.runs.lock import hold
from amata.schedules import ClosedLoop, Control
from amata.training.batches import Batches, held_out_batches, training_batches
from amata.training.device import resolve_device
from amata.training.guard import ATTACK, IMAGES, Failure, Guard
from amata.training.interrupt import Interrupt, Interrupted
from amata.training.saver import Saver
from amata.training.tensorboard import TensorBoard
from amata.training.trainer import Snapshot, Trainer


@dataclass
class Fitted:
    """What training gives back: the best model, and the history that a run folder would hold."""

    model: nn.Module
    rows: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    train_seconds: float = 0.0
    grad_evals: int = 0
    images: int = 0
    """Images trained on, epochs times data set."""


def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    recipe: Recipe | str | Path = "mnist5k-amata",
    *,
    run: RunFolder | str | Path | None = None,
    reporter: Reporter | None = None,
) -> Fitted:
    """Train `model` by the recipe's [threat] [method] [schedule] [optim] and [train].

    `train` and `valid` are image sets, pairs of tensors (x, y), or iterables of (x, y) batches with
    a length. With `run`, a new folder or one opened for resuming, everything is recorded there and
    an interrupt saves a checkpoint; without it, nothing is written. The model is trained in place;
    `Fitted.model` holds the weights that did best on `valid`, or the last ones without it.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load(recipe)
    device = resolve_device(recipe.train.device)
    if not current().is_main:
        run, reporter = None, None  # the first process writes and reports
    if isinstance(run, str | Path):
        run = RunFolder.create(Path(run), recipe)
        run.write_environment(device)
    lock = hold(run.checkpoints, "training") if run else contextlib.nullcontext()
    batches = training_batches(train, recipe, device)
    if len(batches) == 0:
        raise InputError(
            "the training data make no batch; lower data.batch_size or set data.drop_last to false"
        )
    trainer = Trainer(model, batches, recipe, device)
    seeded = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with lock, seeded, Interrupt() as interrupt, Saver(trainer, run) as saver:
        held_out = (
            held_out_batches(valid, recipe, device),
            held_out_batches(valid, recipe, device, IMAGES),
        )
        return _Fit(trainer, *held_out, saver, reporter or Reporter(), interrupt).run_all()


def part_of(ranks: Ranks) -> Part:
    """What this process evaluates."""
    return Part(ranks.rank, ranks.size, ranks.sum)


class _Fit:
    """The epochs of one call of fit(), with what is recorded around them."""

    def __init__(
        self,
        trainer: Trainer,
        valid: Batches | None,
        watched: Batches | None,
        saver: Saver,
        reporter: Reporter,
        interrupt: Interrupt,
    ) -> None:
        """`valid` are the held-out images, `watched` those of them that the guard looks state."""
        self.trainer, self.valid, self.saver, self.reporter, self.interrupt = (
            trainer,
            valid,
            saver,
            reporter,
            interrupt,
        )
        self.recipe, self.ranks, self.run = trainer.recipe, trainer.ranks, saver.run
        self.rows: list[dict[str, Any]] = []
        self.told_slow = False
        guarded = self.recipe.train.guard != "ignore"
        self.guard = (
            Guard(trainer, self._guard_accuracy, watched)
            if guarded and watched is not None
            else None
        )
        epochs = self.recipe.train.epochs
        schedule = self.recipe.schedule
        # An epoch costs K + 1 gradient evaluations an image, so time left follows the schedule, not
        # the epoch count; one that is chosen as training goes is taken to be even.
        self.costs = [
            1 if isinstance(schedule, ClosedLoop) else schedule(epoch, epochs).steps + 1
            for epoch in range(epochs)
        ]
        # a misspelt one is found out before an epoch is spent
        self.valid_attack = parse_attack(self.recipe.train.valid_attack).name

    def run_all(self) -> Fitted:
        trainer = self.trainer
        if self.saver.recorded:
            self._resume()
        if trainer.device.type == "cuda" or self.ranks.size > 1:
            together = f", {self.ranks.size} processes" if self.ranks.size > 1 else ""
            self.reporter.note(trainer.net.describe() + together)
        with TensorBoard(
            self.run.path if self.run and self.recipe.train.tensorboard else None,
            trainer.state.epoch,
            self.reporter.note,
        ) as board:
            while trainer.state.epoch < self.recipe.train.epochs:
                self._keep_epoch()
                if trainer.train_epoch(self._after_batch):
                    self._stop()
                board.add(self._finish_epoch())
        self._keep_epoch()
        state = trainer.state
        if (best := self.saver.finish()) is not None:
            trainer.result.load_state_dict(best)
        return Fitted(
            trainer.result.eval(),
            self.rows,
            state.best_epoch,
            state.train_seconds,
            state.grad_evals,
            state.images,
        )

    def _resume(self) -> None:
        loaded = self.ranks.broadcast(self._checkpoint_at(None, self.reporter.note))
        if loaded is not None:
            self.trainer.restore(*loaded)
            self.saver.place = (self.trainer.state.epoch, self.trainer.state.batch)
        state = self.trainer.state
        if self.run:
            self.run.truncate_rows(state.rows)
            self.rows = self.run.read_rows()
            self.run.promote(state.best_epoch)
            self.run.forget_epochs(state.epoch)
        if loaded is not None and self.guard is not None:
            # damaged or not there: what goes wrong in this epoch can then only stop the run
            with contextlib.suppress(AmataError):
                self.guard.good = self._checkpoint_at(state.epoch, lambda _: None)
            self.guard.good = self.ranks.broadcast(self.guard.good)
        if loaded is not None:
            self.reporter.note(
                f"resumed at {state}"
                if state.epoch < self.recipe.train.epochs
                else "resumed after the last epoch"
            )

    def _checkpoint_at(self, epoch: int | None, note: Callable[[str], None]) -> Snapshot | None:
        """The newest checkpoint, or the one that begins an epoch, where this process has the run
        folder."""
        return (
            load_checkpoint(self.run.checkpoints, self.recipe.fingerprint(), note, epoch=epoch)
            if self.run
            else None
        )

    def _after_batch(self, u: Control) -> bool:
        state = self.trainer.state
        self.reporter.batch(self._batch_info(u))
        self.saver.check()
        stop = self.interrupt.number is not None
        save = (
            self.saver.idle
            and time.monotonic() - self.saver.time > 60 * self.recipe.train.save_minutes
        )
        if self.ranks.size > 1:  # what one process wants to do between batches, all do
            stop, save = (total > 0 for total in self.ranks.sum([stop, save]))
        if stop:
            return True
        if save and state.batch < len(self.trainer.batches):
            self.trainer.stop_clock()
            self.saver.checkpoint(start=self._epoch_start())
            self.trainer.start_clock()
        return False

    def _batch_info(self, u: Control) -> BatchInfo:
        state, epochs = self.trainer.state, self.recipe.train.epochs
        n = len(self.trainer.batches)
        total = sum(self.costs)
        done = sum(self.costs[: state.epoch]) + self.costs[state.epoch] * state.batch / n
        left = state.train_seconds * (total - done) / done if done else None
        return BatchInfo(
            state.epoch,
            epochs,
            state.batch,
            n,
            u.steps,
            u.step_size,
            self.trainer.net.last_loss,
            done / total,
            left,
        )

    def _finish_epoch(self) -> dict[str, Any]:
        trainer, state = self.trainer, self.trainer.state
        u = trainer.control()
        row: dict[str, Any] = {
            "epoch": state.epoch,
            "steps": u.steps,
            "step_size": u.step_size,
            "loss": trainer.mean_loss(),
            "train_seconds": round(state.train_seconds, 3),
            **(
                {"compile_seconds": round(state.compile_seconds, 3)}
                if state.compile_seconds
                else {}
            ),
            "data_seconds": round(state.data_seconds, 3),
            "grad_evals": state.grad_evals,
            "grad_evals_per_image": state.grad_evals / state.images,
            "lr": trainer.lr(state.batch - 1),
        }
        if state.first_layer_evals:
            row["first_layer_evals"] = state.first_layer_evals
        if state.chosen is not None:
            row |= {
                "gamma": state.chosen[2],
                "probe_evals": state.probe_evals,
                "probed": state.curves[-1],
            }
        if self.guard is not None and (failure := self.guard.check()) is not None:
            return self._recover(self.guard, failure)
        last = state.epoch == self.recipe.train.epochs - 1
        if self.valid is not None and (
            last or (state.epoch + 1) % self.recipe.train.valid_every == 0
        ):
            results = self._validate(self.valid, ("clean", self.valid_attack))
            row["valid"] = {name: result.accuracy for name, result in results.items()}
            row["valid_n"] = results["clean"].n
            self._keep_if_best(
                results[getattr(self.recipe.method, "chosen_by", self.valid_attack)].accuracy
            )
        self._add_row(row)
        trainer.next_epoch()
        state.rows = len(self.rows)
        if self.guard is not None and not last:
            self.guard.remember()
        # Where the guard may have to go back to the beginning of the coming epoch, that must be
        # there for a resumed run too.
        if (
            not self.saver.checkpoint(must=self.guard is not None and self.guard.armed, now=last)
            and not self.told_slow
        ):
            self.told_slow = True
            self.reporter.note(
                "epochs end faster than the disk takes a checkpoint: some go without one"
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
        def watch(attack: str, done: int, total: int) -> None:
            self.reporter.evaluating(attack, done, total)
            if self.interrupt.number is not None and self.ranks.size == 1:
                self._stop()

        return evaluate(
            model or self.trainer.result,
            images.epoch(0, self.ranks.rank, self.ranks.size),
            ball=self.recipe.ball,
            attacks=list(dict.fromkeys(attacks)),
            step_size=self.recipe.eval.step_size,
            cw_c=self.recipe.eval.cw_c,
            limit=limit,
            seed=self.recipe.train.seed,
            progress=watch,
            part=part_of(self.ranks),
            batch_size=self.recipe.eval.batch_size,
            engine="plain",  # too little work to compile a copy for
        )

    def _guard_accuracy(self, images: Batches) -> float:
        """The guard looks at the weights themselves: their average would show what went wrong only
        epochs later."""
        return self._validate(images, (ATTACK,), IMAGES, self.trainer.model)[ATTACK].accuracy

    def _recover(self, guard: Guard, failure: Failure) -> dict[str, Any]:
        trainer, row = self.trainer, guard.event(failure)
        self._add_row(row)
        change = guard.go_back(failure, row)
        trainer.state.rows = len(self.rows)
        self.reporter.note(
            f"{failure}; back to the end of epoch {trainer.state.epoch}, now with {change}"
        )
        self.saver.discard_after(trainer.state.epoch)
        self.saver.checkpoint(now=True)
        return row

    def _add_row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.run:
            self.run.append_row(row)

    def _keep_if_best(self, accuracy: float) -> None:
        state = self.trainer.state
        if state.best_accuracy is not None and accuracy <= state.best_accuracy:
            return
        state.best_epoch, state.best_accuracy = state.epoch, accuracy
        self.saver.keep_best()

    def _keep_epoch(self) -> None:
        """Where the recipe asks for it, keep the state that the coming epoch begins with, for
        `amata criterion` to look at."""
        state = self.trainer.state
        if not self.saver.recorded or not self.recipe.train.keep_epochs or state.batch != 0:
            return
        tensors = {
            k: v
            for k, v in self.trainer.snapshot()[0].items()
            if k.startswith(("model/", "ema/", "memory/"))
        }
        if self.run and not self.run.epoch_file(state.epoch).is_file():
            save_tensors(self.run.epoch_file(state.epoch), tensors, {"epoch": state.epoch})

    def _epoch_start(self) -> Snapshot | None:
        """Where the guard would go back to."""
        return self.guard.good if self.guard is not None else None

    def _stop(self) -> None:
        number = self.interrupt.number or signal.SIGTERM  # or another process was interrupted
        if not self.saver.recorded:
            raise Interrupted(
                "interrupted; nothing was saved, because fit() was given no run folder", number
            )
        self.saver.checkpoint(now=True, start=self._epoch_start())
        state = self.trainer.state
        if self.run is None:
            raise Interrupted("interrupted together with the first process", number)
        raise Interrupted(
            f"interrupted in {state}; go on with `amata train --resume {self.run.path}`", number
        )
