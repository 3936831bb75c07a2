"""Safetensors files from anywhere: the header is checked before anything is read."""

import textwrap
from pathlib import Path

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from amata.errors import InputError

HEADER = 16 * 2**20
"""The largest header, in bytes. A header has some 100 bytes per tensor."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    read_metadata(path)
    try:
        return load_file(path)
    except Exception as error:  # the library has no base class for all of its own
        raise _unreadable(path, error) from None


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


def shorten(text: object, length: int = 160) -> str:
    """The text on one line, cut between words, or within a very long one."""
    line = " ".join(str(text).split())
    if len(line) <= length:
        return line
    return (
        textwrap.shorten(line, length, placeholder=" ...")
        if " " in line[:length]
        else (f"{line[:length]}...")
    )


def _unreadable(path: Path, error: BaseException) -> InputError:
    return InputError(f"{path} is not a safetensors file ({shorten(error)})")
