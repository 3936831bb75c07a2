"""What a training leaves in its run folder, written by a thread beside it: an epoch may be shorter
than a disk takes for its checkpoint."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from amata.runs.checkpoint import begins, discard_after, save_checkpoint
from amata.runs.files import load_tensors, save_tensors
from amata.runs.folder import RunFolder
from amata.training.trainer import Snapshot, Trainer

PATIENCE = 1.0
"""Seconds that a checkpoint may take before the next one is left out rather than waited for."""


class Saver:
    """Checkpoints and the best weights of one call of fit(). Several processes call it alike, and
    the first one writes.

    What is saved is copied at once and written while training goes on. A checkpoint that comes
    while the disk is still busy with the one before is left out, unless it `must` be there. An
    error in writing is raised by the next call.
    """

    def __init__(self, trainer: Trainer, run: RunFolder | None) -> None:
        self.trainer, self.run, self.ranks = trainer, run, trainer.ranks
        self.recorded = self.ranks.broadcast(run is not None)
        """Whether there is a run folder; with several processes, the first one's."""
        self.place: tuple[int, int] | None = None
        """The epoch and batch of the newest checkpoint."""
        self.time = time.monotonic()
        self.best: dict[str, Tensor] | None = None
        self.best_unsaved = False
        self.pool = ThreadPoolExecutor(1, "amata-saver")
        self.pending: Future[None] | None = None
        self.started = 0.0

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.pool.shutdown()
        if error is None:
            self.wait()
        elif (failed := self._failure()) is not None:
            error.add_note(f"and {failed}")

    def keep_best(self) -> None:
        """The weights as they are now are the best so far."""
        if self.ranks.is_main:
            self.best, self.best_unsaved = _copied(self.trainer.result.state_dict()), True

    def checkpoint(
        self, *, must: bool = False, now: bool = False, start: Snapshot | None = None
    ) -> bool:
        """Save the state, and with `now` wait until it is on the disk. False where it was left out.

        `start` is the state that the epoch began with: it is saved first, where it was left out,
        for a resumed run to go back to.
        """
        state = self.trainer.state
        if not self.recorded or (state.epoch, state.batch) == self.place:
            if now:
                self.wait()
            return True
        if not self.ranks.broadcast(must or now or self._is_ready()):
            return False
        tensors, record = self.trainer.snapshot()  # all processes have a hand in it
        if self.run:
            failed = self._failure()
            best, self.best_unsaved = self.best if self.best_unsaved else None, False
            self.pending = self.pool.submit(
                self._write, self.run, _copied(tensors), record, best, start
            )
            self.started = time.monotonic()
            if now:
                self.wait()  # what could not be written before no longer matters if this can
            elif failed is not None:
                raise failed
        self.place, self.time = (state.epoch, state.batch), time.monotonic()
        return True

    def discard_after(self, epoch: int) -> None:
        """Forget what was saved after the beginning of an epoch: a rolled-back run must not be
        resumed from it."""
        self.wait()
        self.place = None
        if self.run:
            discard_after(self.run.checkpoints, epoch)

    def finish(self) -> dict[str, Tensor] | None:
        """Write the last weights and the best ones; gives back the best, if any were held to be."""
        self.wait()
        state, last = self.trainer.state, self.trainer.recipe.train.epochs - 1
        if self.run:
            self.run.promote(state.best_epoch)
            self._save_weights(
                self.run.path / "last.safetensors", self.trainer.result.state_dict(), last
            )
            if state.best_epoch is None:  # nothing was held out to choose by
                self._save_weights(
                    self.run.path / "model.safetensors", self.trainer.result.state_dict(), last
                )
            else:
                self.best = load_tensors(self.run.path / "model.safetensors")
        best: dict[str, Tensor] | None = self.ranks.broadcast(self.best)
        return best

    def wait(self) -> None:
        """Until all is on the disk."""
        if (failed := self._failure()) is not None:
            raise failed

    @property
    def idle(self) -> bool:
        """Whether there is a folder to write into, and nothing is being written."""
        return self.run is not None and (self.pending is None or self.pending.done())

    def check(self) -> None:
        """Raise at once what went wrong in writing."""
        if self.pending is not None and self.pending.done():
            self.wait()

    def _failure(self) -> BaseException | None:
        """What went wrong with the last write, once it has ended."""
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        failed = pending.exception()
        # Its best weights are not on the disk: they go with the next write.
        self.best_unsaved = self.best_unsaved or (failed is not None and self.best is not None)
        return failed

    def _is_ready(self) -> bool:
        if self.pending is None:
            return True
        return (
            self.pending
            in wait([self.pending], max(0.0, self.started + PATIENCE - time.monotonic())).done
        )

    def _write(
        self,
        run: RunFolder,
        tensors: dict[str, Tensor],
        record: dict[str, Any],
        best: dict[str, Tensor] | None,
        start: Snapshot | None,
    ) -> None:
        epoch = record["best_epoch"]
        if best is not None:
            self._save_weights(run.best_file(epoch), best, epoch)
        if start is not None and not begins(run.checkpoints, record["epoch"]):
            save_checkpoint(run.checkpoints, record["epoch"], 0, _copied(start[0]), start[1])
        save_checkpoint(run.checkpoints, record["epoch"], record["batch"], tensors, record)
        run.promote(epoch)

    def _save_weights(self, path: Path, weights: dict[str, Tensor], epoch: int) -> None:
        recipe = self.trainer.recipe
        save_tensors(
            path, weights, {"recipe": recipe.name, "tables": recipe.deciding(), "epoch": epoch}
        )


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
