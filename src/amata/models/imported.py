"""Networks from other packages: `timm/NAME` and `package.module:callable`.

Importing a module runs it. `names_code` says whether a name would, so that a caller can ask first.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from amata import imports
from amata.errors import InputError, missing, unknown

Args = dict[str, Any]


def names_code(name: str, args: Args) -> bool:
    """Whether this network is code of the recipe's choice. timm's networks are a fixed list, but
    their arguments may name files to unpickle and layers to import."""
    return ":" in name or (name.startswith("timm/") and bool(args))


def origin(name: str) -> tuple[str, ...] | None:
    """The files or folders from which the network's top-level package would be imported, without
    importing it; None if there are none."""
    own = not name.startswith("timm/")
    return imports.origin(imports.package_of(name, called(name)) if own else "timm")


def called(name: str) -> str:
    """The network in messages."""
    return f"model.name = {name!r}"


def timm_model(name: str, in_channels: int, classes: int, args: Args) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise missing("timm", f"the model timm/{name}", "timm") from None
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())
    return timm.create_model(name, in_chans=in_channels, num_classes=classes, **args)


def imported_model(path: str, args: Args, data_sizes: dict[str, int]) -> nn.Module:
    builder = imports.imported(path, called(path))
    if not callable(builder) or isinstance(builder, nn.Module):
        raise InputError(
            f"{called(path)} is not callable but {type(builder).__name__}; name a class "
            "or function that returns the network"
        )
    check_args(path, builder, args, filled=set())
    wanted = inspect.signature(builder).parameters
    try:
        net = builder(**{k: v for k, v in data_sizes.items() if k in wanted} | args)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"model {path!r} cannot be built from model.args = {args}: {error}"
        ) from error
    if not isinstance(net, nn.Module):
        raise InputError(f"{called(path)} returned {type(net).__name__}, not an nn.Module")
    return net


def check_args(name: str, builder: Callable[..., Any], args: Args, filled: set[str]) -> None:
    """Refuse arguments that the builder does not have."""
    parameters = inspect.signature(builder).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in args:
        if key in filled or key not in parameters:
            raise unknown(f"model.args key of {name}:", key, set(parameters) - filled or {"(none)"})
