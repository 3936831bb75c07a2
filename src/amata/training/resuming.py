"""The checkpoint that a training goes on from, on every process."""

import socket
from collections.abc import Callable

from amata.data import Stream
from amata.distributed import Ranks
from amata.errors import AmataError, InputError, shorten
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.runs.checkpoint import load_checkpoint, read_checkpoint
from amata.training.trainer import Snapshot, Trainer


def find_checkpoint(
    run: RunFolder | None,
    recipe: Recipe,
    ranks: Ranks,
    note: Callable[[str], None],
    epoch: int | None = None,
) -> Snapshot | None:
    """The newest checkpoint, or the one at the start of `epoch`; None if there is none. Rank 0, the
    only one with a `run`, chooses it, and every process reads it from the shared file system."""
    loaded, place, error = None, None, None
    try:
        if run is not None:
            folder = run.checkpoints.absolute()
            loaded = load_checkpoint(folder, recipe.fingerprint(), note, epoch=epoch)
            if loaded is not None:
                place = folder, *(loaded[1][key] for key in ("epoch", "batch", "tensors"))
    except AmataError as failed:
        error = failed
    place, error = ranks.broadcast((place, error))
    if place is not None and not ranks.is_main:
        try:
            loaded = read_checkpoint(*place)
        except (InputError, OSError) as failed:
            error = InputError(
                f"rank {ranks.rank} on {socket.gethostname()} cannot read the checkpoint of rank 0 "
                f"({shorten(failed)}); put the run folder on a file system that all machines share"
            )
    # All processes fail together: none is left waiting.
    if error := next(filter(None, ranks.gather(error)), None):
        raise error
    return loaded


def restore(trainer: Trainer, checkpoint: Snapshot) -> None:
    """Continue from a checkpoint, which must fit the model."""
    try:
        trainer.restore(*checkpoint)
    except InputError:
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint does not fit this model ({shorten(error)}); resume with the model "
            "that the run began with"
        ) from error


def resumed_notes(trainer: Trainer) -> list[str]:
    """Where training goes on, and what will differ from a run that was not interrupted."""
    state, batches = trainer.state, trainer.batches
    if state.epoch == trainer.recipe.train.epochs:
        return ["resumed after the last epoch"]
    notes = [f"resumed at {state}"]
    if 0 < state.batch < len(batches) and isinstance(batches, Stream) and batches.shuffled:
        notes.append(
            f"the DataLoader draws a new order: in the rest of epoch {state.epoch + 1} some images "
            "come again and others not at all; pass its dataset to resume exactly"
        )
    return notes
