"""Safetensors files from anywhere: the header is checked before anything is read."""

from pathlib import Path

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from amata.checksums import check_tensors
from amata.errors import InputError, shorten

HEADER = 16 * 2**20
"""The largest header, in bytes. A header has some 100 bytes per tensor."""


def read_tensors(path: Path, checksum: str | None = None) -> dict[str, Tensor]:
    """All tensors of a file, checked against the checksum in its header if it is one of ours. With
    `checksum`, it must be the file that has this one."""
    metadata = read_metadata(path)
    try:
        tensors = load_file(path)
    except Exception as error:  # the library has no base class for all of its own
        raise _unreadable(path, error) from None
    check_tensors(path, tensors, metadata, checksum)
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """The text entries of a file's header, once its size and the names in it are checked."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > HEADER and path.stat().st_size >= 8 + HEADER:
            raise InputError(
                f"{path} has a header of {size:,} bytes, more than {HEADER:,}: it is not read"
            )
        with safetensors.safe_open(path, framework="pt") as tensors:
            names, metadata = tensors.keys(), tensors.metadata()
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None
    for name in names:
        if not name.isprintable():
            raise InputError(
                f"{path} has a tensor named {shorten(name)!r}, with control characters: it is "
                "not read"
            )
    return metadata or {}


def _unreadable(path: Path, error: BaseException) -> InputError:
    return InputError(f"{path} is not a safetensors file ({shorten(error)})")
