"""Atomic files: a reader sees the old content or the new one, never a part."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from amata.errors import InputError

Parts = tuple[bytes | memoryview, ...]
"""A file's content in pieces, so that large tensors are not copied while training runs."""
NAMES = {
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of types in safetensors files."""


def write_atomic(path: Path, *content: bytes | memoryview) -> None:
    """Write a temporary file, sync it, then rename it over the target. If anything fails, the old
    file stays."""
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(exist_ok=True)
        with partial.open("wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise unwritable(path, error) from None
    # Some file systems cannot sync a folder; the rename is atomic anyway.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def link_atomic(path: Path, source: Path) -> None:
    """Make `path` a hard link to `source`, or a copy where links are not supported."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.unlink(missing_ok=True)
        os.link(source, partial)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)  # it may be a link to the source
        write_atomic(path, source.read_bytes())


def unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write {path} ({error.strerror}); what was saved before is still there: free "
        "some space and resume"
    )


def read_json(path: Path) -> Any:
    """The content of a JSON file; a damaged one is an InputError."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: it is not JSON") from None


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())


def save_tensors(
    path: Path, tensors: dict[str, Tensor], about: dict[str, Any] | None = None
) -> Parts:
    """Write a safetensors file with a JSON description in its header; returns its content.

    The library's own writer copies everything twice and holds the interpreter lock, which would
    stop training.
    """
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {"amata": json.dumps(about or {}), "format": "pt"}}
    pieces: list[memoryview] = []
    end = 0
    # Sorted by element size, so that every tensor is aligned.
    for name in sorted(flat, key=lambda name: (-flat[name].element_size(), name)):
        tensor = flat[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight
    content: Parts = (len(text).to_bytes(8, "little"), text, *pieces)
    write_atomic(path, *content)
    return content


def describe_weights(path: Path) -> dict[str, Any]:
    """The JSON description in a safetensors file's header; empty for a file that is not ours."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("amata", "{}"))
            return about
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a safetensors file ({error})") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    return load_file(path)


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
