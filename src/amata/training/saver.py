"""Asynchronous checkpointing: an epoch may take less time than writing its checkpoint."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from amata.runs.checkpoint import begins, discard_after, save_checkpoint
from amata.runs.files import save_tensors
from amata.runs.folder import RunFolder
from amata.tensors import read_tensors
from amata.training.trainer import Snapshot, Trainer

PATIENCE = 1.0
"""Seconds to wait for the previous checkpoint before the next one is skipped."""
RATE = 200_000_000
"""Checkpoints are limited to this many bytes a second: a method that stores perturbations of all
images may have a state of gigabytes, and epochs of seconds."""


class Saver:
    """Writes the checkpoints and the best weights of one training. Every process calls it; rank 0
    writes.

    The state is copied at once and written in a thread. A checkpoint is skipped while the disk is
    still busy with the previous one, and where checkpoints would come to more than RATE. The next
    call raises an error of the thread.
    """

    def __init__(self, trainer: Trainer, run: RunFolder | None) -> None:
        self.trainer, self.run, self.ranks = trainer, run, trainer.ranks
        self.recorded = self.ranks.broadcast(run is not None)
        """Whether rank 0 has a run folder."""
        self.split = (run.recorded_split or run.split()) if run else {}
        """Known now, so that weights say the same even if the folder is being deleted."""
        self.place: tuple[int, int] | None = None
        """The epoch and batch of the newest checkpoint."""
        self.time = time.monotonic()
        self.best: dict[str, Tensor] | None = None
        self.best_unsaved = False
        self.pool = ThreadPoolExecutor(1, "amata-saver")
        self.pending: Future[None] | None = None
        self.started = 0.0
        self.copies = Copies()

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
        """Keep a copy of the current weights as the best so far."""
        if self.ranks.is_main:
            self.best, self.best_unsaved = _copied(self.trainer.result.state_dict()), True

    def checkpoint(self, *, now: bool = False, start: Snapshot | None = None) -> bool:
        """Save the state; with `now`, wait until it is on the disk. False if it was skipped.

        `start` is the state at the start of the epoch. If its checkpoint was skipped it is written
        first, so that a resumed run can roll back to it.
        """
        state = self.trainer.state
        if not self.recorded or (state.epoch, state.batch) == self.place:
            if now:
                self.wait()
            return True
        if not self.ranks.broadcast(now or self._is_ready()):
            return False
        tensors, record = self.trainer.snapshot()  # every process takes part
        if self.run:
            failed = self._failure()
            best, self.best_unsaved = self.best if self.best_unsaved else None, False
            # Nothing is pending, so the copies of the last checkpoint are not needed any more.
            copies = self.copies.of(tensors)
            self.pending = self.pool.submit(self._write, self.run, copies, record, best, start)
            self.started = time.monotonic()
            if now:
                self.wait()  # an earlier failure no longer matters if this succeeds
            elif failed is not None:
                raise failed
        self.place, self.time = (state.epoch, state.batch), time.monotonic()
        return True

    def discard_after(self, epoch: int) -> None:
        """Drop checkpoints after the start of `epoch`: a rolled-back run must not resume there."""
        self.wait()
        self.place = None
        if self.run:
            discard_after(self.run.checkpoints, epoch)

    def finish(self) -> dict[str, Tensor] | None:
        """Write the last and the best weights; returns the best, if a validation set chose any."""
        self.wait()
        state, last = self.trainer.state, self.trainer.recipe.train.epochs - 1
        if self.run:
            self.run.promote(state.best_epoch)
            self._save_weights(
                self.run.path / "last.safetensors", self.trainer.result.state_dict(), last
            )
            if state.best_epoch is None:  # no validation set
                self._save_weights(
                    self.run.path / "model.safetensors", self.trainer.result.state_dict(), last
                )
            else:
                self.best = read_tensors(self.run.path / "model.safetensors")
        best: dict[str, Tensor] | None = self.ranks.broadcast(self.best)
        return best

    def wait(self) -> None:
        """Wait until everything is on the disk."""
        if (failed := self._failure()) is not None:
            raise failed

    @property
    def idle(self) -> bool:
        """Whether there is a folder, and no write is pending."""
        return self.run is not None and (self.pending is None or self.pending.done())

    def check(self) -> None:
        """Raise the error of a failed write, without waiting for a pending one."""
        if self.pending is not None and self.pending.done():
            self.wait()

    def _failure(self) -> BaseException | None:
        """The error of the last write, after it has ended."""
        if self.pending is None:
            return None
        failed = self.pending.exception()  # an interrupt leaves it pending
        self.pending = None
        # The best weights of a failed write go with the next one.
        self.best_unsaved = self.best_unsaved or (failed is not None and self.best is not None)
        return failed

    def _is_ready(self) -> bool:
        if time.monotonic() < self.started + self.copies.size / RATE:
            return False
        if self.pending is None:
            return True
        patience = max(0.0, self.started + PATIENCE - time.monotonic())
        return self.pending in wait([self.pending], patience).done

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
        recipe, split = self.trainer.recipe, self.split
        about = {"recipe": recipe.name, "tables": recipe.deciding(), "epoch": epoch}
        known = {key: split[key] for key in ("classes", "shape") if key in split}
        save_tensors(path, weights, about | known)


class Copies:
    """Copies of a training's tensors in buffers that are reused: copying to new memory takes ten
    times as long."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def of(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies of these tensors. They overwrite those of the last call."""
        for name in self.kept.keys() - tensors.keys():
            del self.kept[name]
        for name, tensor in tensors.items():
            kept = self.kept.get(name)
            if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
                kept = self.kept[name] = torch.empty_like(tensor, device="cpu")
            kept.copy_(tensor.detach())
        return dict(self.kept)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(tensor.nbytes for tensor in self.kept.values())


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
