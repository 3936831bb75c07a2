"""Networks from other packages: `timm/NAME` and `package.module:callable`.

Importing a module runs it. `names_code` says whether a name would, and `origin` finds the module
without importing it, so that a caller can ask before it happens.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from amata.errors import InputError, missing, unknown

Args = dict[str, Any]


def names_code(name: str, args: Args) -> bool:
    """Whether this network is code of the recipe's choice. timm's networks are a fixed list, but
    their arguments may name files to unpickle and layers to import."""
    return ":" in name or (name.startswith("timm/") and bool(args))


def origin(name: str) -> tuple[str, ...] | None:
    """The files or folders from which the network's top-level package would be imported; None if
    there are none. Nothing is imported: a submodule is found by running its package, so only the
    package is looked for."""
    with _working_directory():
        return _places(_package(name))


def timm_model(name: str, in_channels: int, classes: int, args: Args) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise missing("timm", f"the model timm/{name}", "timm") from None
    if name not in timm.list_models():
        raise unknown("timm model", name, timm.list_models())
    return timm.create_model(name, in_chans=in_channels, num_classes=classes, **args)


def imported_model(path: str, args: Args, data_sizes: dict[str, int]) -> nn.Module:
    builder = _builder(path)
    if not callable(builder) or isinstance(builder, nn.Module):
        raise InputError(
            f"model.name = {path!r} is not callable but {type(builder).__name__}; name a class "
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
        raise InputError(f"model.name = {path!r} returned {type(net).__name__}, not an nn.Module")
    return net


def check_args(name: str, builder: Callable[..., Any], args: Args, filled: set[str]) -> None:
    """Refuse arguments that the builder does not have."""
    parameters = inspect.signature(builder).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in args:
        if key in filled or key not in parameters:
            raise unknown(f"model.args key of {name}:", key, set(parameters) - filled or {"(none)"})


def _builder(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        # As with `python -m`, modules in the working directory can be imported. It is added only if
        # this module is in it: a file there must not shadow what others import.
        if origin(path) != _places(_package(path)):
            sys.path.insert(0, str(Path.cwd()))
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"model.name = {path!r} cannot be imported ({error}); write it as "
            "package.module:callable"
        ) from None


def _package(name: str) -> str:
    """The top-level package that a network's name imports."""
    if name.startswith("timm/"):
        return "timm"
    parts = name.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts):
        raise InputError(
            f"model.name = {name!r} cannot be imported; write it as package.module:callable"
        )
    return parts[0]


def _places(package: str) -> tuple[str, ...] | None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec, such as the script that is running
        file = getattr(sys.modules[package], "__file__", None)
        return (os.path.realpath(file),) if file else ()
    if spec is None:
        return None
    if spec.has_location and spec.origin:
        return (os.path.realpath(spec.origin),)
    # A namespace package: every folder of its name.
    return tuple(os.path.realpath(place) for place in spec.submodule_search_locations or ())


@contextlib.contextmanager
def _working_directory() -> Iterator[None]:
    """The working directory in front of Python's path, unless it is there already."""
    here = str(Path.cwd())
    if "" in sys.path or here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
