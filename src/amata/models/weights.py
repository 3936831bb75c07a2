"""Weights files: safetensors, or a state dict in a .pt or .pth file. No file runs code."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata.errors import InputError, shorten
from amata.models.pickled import read_pickled
from amata.tensors import read_tensors


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a .safetensors file, or a .pt/.pth state dict (with `weights_only`), into the model."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no weights at {path}; give a .safetensors, .pt or .pth file")
    load_state(
        model, read_tensors(path) if path.suffix == ".safetensors" else read_pickled(path), path
    )


def load_state(model: nn.Module, state: Any, path: Path) -> None:
    """Load a state dict that was read from `path`; the error names what does not fit."""
    try:
        model.load_state_dict(state)
    except Exception as error:  # a state dict of a stranger may hold anything
        reason = mismatch(model, state) or shorten(error)
        raise InputError(
            f"weights {path} do not fit the model {type(model).__name__}: {reason}"
        ) from None


def mismatch(model: nn.Module, state: Any) -> str | None:
    """The first difference between a state dict and the model's own, and how many there are."""
    if not isinstance(state, dict):
        return f"the file holds {type(state).__name__}, not a state dict"
    own = model.state_dict()
    found = [f"{shorten(repr(name))} is missing" for name in own if name not in state]
    for name, value in state.items():
        if name not in own:
            found.append(f"{shorten(repr(name))} is not in the model")
        elif not isinstance(value, torch.Tensor):
            found.append(f"{name!r} is {type(value).__name__}, not a tensor")
        elif isinstance(own[name], torch.Tensor) and value.shape != own[name].shape:
            shapes = tuple(value.shape), tuple(own[name].shape)
            found.append(f"{name!r} has shape {shapes[0]}, not {shapes[1]}")
    if not found:
        return None
    return found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
