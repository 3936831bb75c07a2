"""Checkpoints: tensors as safetensors, everything else as JSON, the last two kept.

EPOCH-BATCH.safetensors is written first and EPOCH-BATCH.json, which holds its checksum and one of
its own, second: a checkpoint exists from the instant its JSON does, so a kill at any moment leaves
whole ones only, and a damaged file is noticed before it is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from amata.errors import AmataError, InputError
from amata.runs.files import read_record, remove, save_tensors, tensors_checksum, write_record
from amata.runs.records import CHECKPOINT
from amata.tensors import read_tensors

KEEP = 2


def save_checkpoint(
    folder: Path, epoch: int, batch: int, tensors: dict[str, Tensor], record: dict[str, Any]
) -> None:
    """Save the state before batch `batch` of `epoch`. Keeps the newest two checkpoints, and the
    newest at the start of an epoch."""
    stem = f"{epoch:05d}-{batch:07d}"
    checksum = _same_tensors(folder / f"{stem}.json", tensors)
    if checksum is None:
        remove(folder / f"{stem}.json")  # a damaged checkpoint may have the same name
        checksum = save_tensors(folder / f"{stem}.safetensors", tensors)
    write_record(folder / f"{stem}.json", {**record, "tensors": checksum})
    records = _records(folder)
    # The guard rolls back to the start of an epoch.
    begins_epoch = [path for path in records if path.stem.endswith("-0000000")][-1:]
    for old in records[:-KEEP]:
        if old not in begins_epoch:
            remove(old)  # the record first: without it there is no checkpoint
    for partial in folder.glob(".[0-9]*.part"):
        if partial.name[1:] < stem:
            remove(partial)  # left by a kill during a write
    kept = {path.stem for path in _records(folder)}
    for path in folder.glob("[0-9]*.safetensors"):
        if path.stem not in kept:
            remove(path)


def _same_tensors(path: Path, tensors: dict[str, Tensor]) -> str | None:
    """The checksum of the tensors, if a whole checkpoint with this record has them already: one
    that the guard went back to, say. Then only its record is replaced, and a kill loses nothing."""
    if not path.is_file():
        return None
    checksum = tensors_checksum(tensors)
    try:
        if read_record(path, CHECKPOINT, sealed=True)["tensors"] != checksum:
            return None
        read_tensors(path.with_suffix(".safetensors"), checksum)
    except InputError:  # damaged
        return None
    return checksum


def load_checkpoint(
    folder: Path, fingerprint: str, note: Callable[[str], None], epoch: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest intact checkpoint, or the one at the start of `epoch`; None if there is none. A
    damaged one, or one whose best weights are damaged, is reported and skipped."""
    records = [
        path for path in _records(folder) if epoch is None or path.stem == f"{epoch:05d}-0000000"
    ]
    for path in reversed(records):
        try:
            record = read_record(path, CHECKPOINT, sealed=True)
            tensors = read_tensors(path.with_suffix(".safetensors"), record["tensors"])
            if (best := record.get("best_epoch")) is not None:
                read_tensors(best_file(folder, best))
        except InputError as error:
            reason = str(error).partition(";")[0]
            note(f"checkpoint {path.stem} is damaged: {reason}; falling back to the one before it")
            continue
        if record["fingerprint"] != fingerprint:
            raise InputError(
                f"checkpoint {path} belongs to another recipe than "
                f"{folder.parent / 'recipe.toml'}; restore that file or start a new run"
            )
        return tensors, record
    if records:
        raise AmataError(f"no checkpoint in {folder} can be read; start a new run")
    return None


def read_checkpoint(
    folder: Path, epoch: int, batch: int, checksum: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checkpoint before this batch, which must be the one whose tensors have this checksum."""
    path = folder / f"{epoch:05d}-{batch:07d}.json"
    if not path.is_file():
        raise InputError(f"there is no {path}")
    record = read_record(path, CHECKPOINT, sealed=True)
    return read_tensors(path.with_suffix(".safetensors"), checksum), record


def best_file(folder: Path, epoch: int) -> Path:
    """The weights after `epoch`, the best so far when a checkpoint was saved."""
    return folder / f"best-{epoch:05d}.safetensors"


def begins(folder: Path, epoch: int) -> bool:
    """Whether there is a checkpoint at the start of this epoch."""
    return (folder / f"{epoch:05d}-0000000.json").is_file()


def discard_after(folder: Path, epoch: int) -> None:
    """Drop every checkpoint after the start of `epoch`: a rolled-back run must not resume there."""
    for path in _records(folder):
        if path.stem > f"{epoch:05d}-0000000":
            remove(path)


def _records(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"))
