"""Checkpoints: tensors as safetensors, everything else as JSON, the last two kept.

EPOCH-BATCH.safetensors is written first and EPOCH-BATCH.json, which holds its hash, second: a
checkpoint exists from the instant its JSON does, so a kill at any moment leaves whole ones only,
and a damaged file is noticed before it is used.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from amata.errors import AmataError, InputError
from amata.runs.files import load_tensors, save_tensors, write_json

KEEP = 2


def save_checkpoint(
    folder: Path, epoch: int, batch: int, tensors: dict[str, Tensor], record: dict[str, Any]
) -> None:
    """Save the state before batch `batch` of `epoch`. Keeps the newest two checkpoints, and the
    newest at the start of an epoch."""
    stem = f"{epoch:05d}-{batch:07d}"
    # A damaged checkpoint may have the same name.
    (folder / f"{stem}.json").unlink(missing_ok=True)
    digest = hashlib.sha256()
    for part in save_tensors(folder / f"{stem}.safetensors", tensors):
        digest.update(part)
    write_json(folder / f"{stem}.json", {**record, "sha256": digest.hexdigest()})
    records = _records(folder)
    # The guard rolls back to the start of an epoch.
    begins_epoch = [path for path in records if path.stem.endswith("-0000000")][-1:]
    for old in records[:-KEEP]:
        if old not in begins_epoch:
            old.unlink()  # the record first: without it there is no checkpoint
    for partial in folder.glob(".[0-9]*.part"):
        if partial.name[1:] < stem:
            partial.unlink()  # left by a kill during a write
    kept = {path.stem for path in _records(folder)}
    for path in folder.glob("[0-9]*.safetensors"):
        if path.stem not in kept:
            path.unlink()


def load_checkpoint(
    folder: Path, fingerprint: str, note: Callable[[str], None], epoch: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest intact checkpoint, or the one at the start of `epoch`; None if there is none. A
    damaged one is reported and skipped."""
    records = [
        path for path in _records(folder) if epoch is None or path.stem == f"{epoch:05d}-0000000"
    ]
    for path in reversed(records):
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            tensors_path = path.with_suffix(".safetensors")
            if hashlib.sha256(tensors_path.read_bytes()).hexdigest() != record["sha256"]:
                raise ValueError("its hash is wrong")
            tensors = load_tensors(tensors_path)
        except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
            note(f"checkpoint {path.stem} is damaged ({error}); falling back to the one before it")
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


def begins(folder: Path, epoch: int) -> bool:
    """Whether there is a checkpoint at the start of this epoch."""
    return (folder / f"{epoch:05d}-0000000.json").is_file()


def discard_after(folder: Path, epoch: int) -> None:
    """Drop every checkpoint after the start of `epoch`: a rolled-back run must not resume there."""
    for path in _records(folder):
        if path.stem > f"{epoch:05d}-0000000":
            path.unlink()


def _records(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"))
