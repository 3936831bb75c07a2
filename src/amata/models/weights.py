"""Weights files: safetensors, or a state dict in a .pt or .pth file. No file runs code.

Files of other programs hold their state dict in a dictionary of a training state, or with a prefix
that a wrapper put in front of every name. Both are removed where the names then fit the model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata.errors import InputError, shorten
from amata.models.normalize import Normalized, drop_constants
from amata.models.pickled import read_pickled
from amata.tensors import read_tensors

CONTAINERS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "net",
    "network",
    "weights",
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema",
)
"""Where training programs keep a state dict; the first one that fits is taken."""
PREFIXES = ("module.", "model.", "_orig_mod.", "net.")
"""What DataParallel, Lightning, torch.compile and our own `Normalized` put in front of names."""
DEPTH = 4
"""The most prefixes in front of a name."""
COUNTER = "num_batches_tracked"
"""BatchNorm's counter, which old files do not have."""


def load_weights(model: nn.Module, path: str | Path, new_head: bool | None = None) -> list[str]:
    """Load a .safetensors, .pt or .pth file, or the best weights of a run folder, into the model.

    A classifier for another number of classes is refused. With `new_head` the model keeps its own,
    freshly initialised one, and everything else must fit; None: the caller has no such setting.
    Returns the tensors that it keeps, as in "linear.weight (35, 512) -> (5, 512)".
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path /= "model.safetensors"
    if not path.is_file():
        raise InputError(
            f"no weights at {path}; give a .safetensors, .pt or .pth file, or a run folder"
        )
    state = read_tensors(path) if path.suffix == ".safetensors" else read_pickled(path)
    state = _unwrapped(model, state)
    replaced = _other_head(model, state)
    if not (replaced and new_head):
        ways = {
            None: "; give the network as many outputs as the weights have",
            False: "; to train a new head, set model.new_head=true",
        }
        load_state(model, state, path, ways[new_head] if replaced else "")
        return []
    own = model.state_dict()
    load_state(model, {**state, **{name: own[name] for name in replaced}}, path)
    return [f"{k} {tuple(state[k].shape)} -> {tuple(own[k].shape)}" for k in replaced]


def load_state(model: nn.Module, state: Any, path: Path, hint: str = "") -> None:
    """Load a state dict that was read from `path`; the error names what does not fit."""
    try:
        model.load_state_dict(state)
    except Exception as error:  # a state dict of a stranger may hold anything
        reason = mismatch(model, state) or shorten(error)
        raise InputError(
            f"weights {path} do not fit the model {type(model).__name__}: {reason}{hint}"
        ) from None


def mismatch(model: nn.Module, state: Any) -> str | None:
    """The first difference between a state dict and the model's own, and how many there are."""
    if not isinstance(state, dict):
        return f"the file holds {type(state).__name__}, not a state dict"
    own = model.state_dict()
    found = [f"{shorten(repr(name))} is missing" for name in own if name not in state]
    places = {name: place for place, name in enumerate(own)}
    for name, value in sorted(state.items(), key=lambda item: places.get(item[0], len(own))):
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


def _unwrapped(model: nn.Module, content: Any) -> Any:
    """The state dict in a file: the first candidate whose names are the model's. If there is none,
    the one that shares most names with it, for the error."""
    own = {name for name in model.state_dict() if not name.endswith(COUNTER)}
    best, most = content, 0
    for state in _candidates(model, content):
        if own <= state.keys() and all(n in own or n.endswith(COUNTER) for n in state):
            return state
        if (shared := len(own & state.keys())) > most:
            best, most = state, shared
    return best


def _candidates(model: nn.Module, content: Any) -> Iterator[dict[str, Any]]:
    outer = _inside([content])
    for found in [content, *outer, *_inside(outer)]:
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
            continue
        state: dict[str, Any] = drop_constants(model, found)
        if "n_averaged" in state:  # of torch's AveragedModel
            state = {name: value for name, value in state.items() if name != "n_averaged"}
        for _ in range(DEPTH):
            yield state
            if isinstance(model, Normalized):
                yield {f"net.{name}": value for name, value in state.items()}
            prefix = next((p for p in PREFIXES if all(n.startswith(p) for n in state)), None)
            if prefix is None:
                break
            state = {name.removeprefix(prefix): value for name, value in state.items()}


def _inside(contents: list[Any]) -> list[Any]:
    return [c[k] for c in contents if isinstance(c, dict) for k in CONTAINERS if k in c]


def _other_head(model: nn.Module, state: Any) -> list[str]:
    """The tensors of a classifier for another number of classes: weight and bias of a layer that
    differ in their number of outputs, while everything else fits. Empty if there is none."""
    if not isinstance(state, dict):
        return []
    own, outputs, found = model.state_dict(), set(), []
    for name in own:
        value = state.get(name)
        if not isinstance(value, Tensor) or value.shape == own[name].shape:
            continue
        layer, _, kind = name.rpartition(".")
        fits = (
            kind in ("weight", "bias")
            and isinstance(model.get_submodule(layer), nn.Linear | nn.Conv2d)
            and value.dim() == own[name].dim()
            and value.shape[1:] == own[name].shape[1:]
        )
        if not fits:
            return []
        outputs.add((value.shape[0], own[name].shape[0]))
        found.append(name)
    whole = all(f"{name.rpartition('.')[0]}.weight" in found for name in found)
    return found if len(outputs) == 1 and whole else []
