"""Networks by name: images in [0, 1] in, logits out, with normalisation inside.

A name is one of MODELS, `timm/NAME` where timm is installed, or an import path
`package.module:callable` to anything that returns an `nn.Module`. If the callable has parameters
`in_channels`, `classes` or `num_classes`, they are filled in from the data.
"""

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata.errors import InputError, missing, unknown
from amata.models.normalize import Normalize, Normalized
from amata.models.preact_resnet import PreActResNet18
from amata.models.resnet import resnet18, resnet50
from amata.models.small import LeNet, SmallCNN, TinyCNN
from amata.models.wide_resnet import WideResNet
from amata.seeds import derive

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": LeNet,
    "smallcnn": SmallCNN,
    "tinycnn": TinyCNN,
    "preactresnet18": PreActResNet18,
    "wrn-34-10": WideResNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
}

__all__ = ["MODELS", "Normalize", "Normalized", "build", "load_weights"]


def build(
    name: str,
    *,
    in_channels: int,
    classes: int,
    args: dict[str, Any] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> nn.Module:
    """The network `name` with weights drawn from `seed` alone; torch's global generator is
    untouched."""
    args = args or {}
    normalize = Normalize(mean, std)
    if mean is not None and len(mean) != in_channels:
        raise InputError(
            f"model.mean has {len(mean)} values and the images have {in_channels} channels; give "
            "one value per channel"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "init"))
        if name in MODELS:
            # model.args may set everything but the parameters that every network shares.
            _check_args(name, MODELS[name], args, filled={"in_channels", "classes", "normalize"})
            return MODELS[name](
                in_channels=in_channels, classes=classes, normalize=normalize, **args
            )
        if name.startswith("timm/"):
            net = _timm_model(name.removeprefix("timm/"), in_channels, classes, args)
        elif ":" in name:
            net = _imported_model(
                name, args, {"in_channels": in_channels, "classes": classes, "num_classes": classes}
            )
        else:
            raise unknown("model", name, [*MODELS, "timm/NAME", "package.module:callable"])
    return net if mean is None else Normalized(net, normalize)


def _check_args(
    name: str, builder: Callable[..., Any], args: dict[str, Any], filled: set[str]
) -> None:
    parameters = inspect.signature(builder).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in args:
        if key in filled or key not in parameters:
            raise unknown(f"model.args key of {name}:", key, set(parameters) - filled or {"(none)"})


def _timm_model(name: str, in_channels: int, classes: int, args: dict[str, Any]) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise missing("timm", f"the model timm/{name}", "timm") from None
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())
    return timm.create_model(name, in_chans=in_channels, num_classes=classes, **args)


def _imported_model(path: str, args: dict[str, Any], data_sizes: dict[str, int]) -> nn.Module:
    module_name, _, attribute = path.partition(":")
    # As with `python -m`, modules in the working directory can be imported.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        builder = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"model.name = {path!r} cannot be imported ({error}); write it as "
            "package.module:callable"
        ) from None
    if not callable(builder) or isinstance(builder, nn.Module):
        raise InputError(
            f"model.name = {path!r} is not callable but {type(builder).__name__}; name a class "
            "or function that returns the network"
        )
    _check_args(path, builder, args, filled=set())
    wanted = inspect.signature(builder).parameters
    try:
        net = builder(**{k: v for k, v in data_sizes.items() if k in wanted} | args)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"model {path!r} cannot be built from model.args = {args}: {error}"
        ) from error
    if not isinstance(net, nn.Module):
        raise InputError(f"model.name = {path!r} returned {type(net).__name__}, not an nn.Module")
    return net


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a .safetensors file, or a .pt/.pth state dict (with `weights_only`), into the model."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no weights at {path}; give a .safetensors, .pt or .pth file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"weights {path} cannot be read ({str(error).splitlines()[0]}); it must be "
            ".safetensors or a plain state dict"
        ) from None
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        reason = textwrap.shorten(str(error), 400, placeholder=" ...")
        raise InputError(
            f"weights {path} do not fit the model {type(model).__name__}: {reason}"
        ) from None
