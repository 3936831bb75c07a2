"""Weights in .pt and .pth files: pickles of tensors, checked before torch reads them.

`torch.load(weights_only=True)` builds tensors only, but a small file can still ask for much: a
compressed archive, or tuples of tuples whose hash takes years.
"""

import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from amata.errors import InputError, shorten

DEPTH = 10
"""The most levels of tuples in a file; torch writes three."""
LEGACY_PICKLES = 5
"""A file from before torch 1.6 is a sequence of so many pickles, and the tensors."""


def read_pickled(path: Path) -> Any:
    """The content of a file of `torch.save`."""
    try:
        _check(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        reason = "it holds other Python objects than tensors, or is damaged"
    except Exception as error:
        reason = shorten(str(error).partition("\n")[0])
    raise InputError(
        f"weights {path} cannot be read ({reason}); save them with "
        "torch.save(model.state_dict(), FILE) or as .safetensors"
    )


def _check(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            for _ in range(LEGACY_PICKLES):
                _check_depth(file)
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its archive is compressed, which torch.save never does")
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its archive claims more bytes than the file has")
        for member in members:
            if member.filename.endswith(".pkl"):
                with archive.open(member) as file:
                    _check_depth(file)


def _check_depth(file: IO[bytes]) -> None:
    """Refuse tuples that are nested deeply. Each may hold the one below it twice, so that hashing
    or printing the outermost takes exponential time."""
    stack: list[int] = []  # how deep each value is
    marks: list[int] = []
    memo: dict[Any, int] = {}
    for opcode, argument, _ in pickletools.genops(file):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo.get(argument, 0))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1] if stack else 0
        elif name == "DUP":
            stack.append(stack[-1] if stack else 0)
        else:
            start = len(stack)
            needs = opcode.stack_before
            if pickletools.markobject in needs:
                start = marks.pop() if marks else 0
                needs = needs[: needs.index(pickletools.markobject)]
            start = max(0, start - len(needs))
            depth = 1 + max(stack[start:], default=0) if "TUPLE" in name else 0
            if depth > DEPTH:
                raise ValueError("its tuples are nested too deeply")
            stack[start:] = [depth] * len(opcode.stack_after)
