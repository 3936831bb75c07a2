"""Checksums inside files: a JSON record or a safetensors file carries that of its own content, so
that a copy of it anywhere can still be checked."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amata.errors import InputError

ABOUT, CHECKSUM = "amata", "amata_sha256"
"""The keys of our description and of our checksum in the header of a safetensors file."""
RESTORE = "restore it from a copy"


def damaged(path: Path, reason: object, hint: str = RESTORE) -> InputError:
    return InputError(f"{path} is damaged ({reason}); {hint}")


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_record(record: dict[str, Any]) -> str:
    """The checksum of a JSON object, whatever the order and the layout of its keys."""
    return of_text(json.dumps(record, sort_keys=True, separators=(",", ":")))


def of_tensors(tensors: dict[str, Tensor], about: str) -> str:
    """The checksum of names, types, shapes and values, whatever their order, and of a description.
    The tensors are contiguous and on the CPU."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(raw(tensor))
    return digest.hexdigest()


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def check_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], expected: str | None = None
) -> None:
    """Refuse the content of a safetensors file that does not fit the checksum in its header, or is
    not the `expected` one. A file without a checksum, of another program, is accepted."""
    known = metadata.get(CHECKSUM)
    if known is None:
        # Its key may be what is damaged. Files of earlier versions had these keys alone.
        if expected or (ABOUT in metadata and metadata.keys() - {ABOUT, "format"}):
            raise damaged(path, "it has no checksum")
    elif known != of_tensors(tensors, metadata.get(ABOUT, "")):
        raise damaged(path, "its checksum is wrong")
    if expected not in (None, known):
        raise damaged(path, "it is another file than was saved")
