"""A limit on the size of a network while it is built."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from amata.errors import InputError

PARAMETERS = 2_000_000_000
MODULES = 5_000


@contextlib.contextmanager
def limited(name: str, most: int | None = None) -> Iterator[None]:
    """Refuse a network with more parameters or modules than these, as soon as it has them: a
    parameter is registered before it is filled. `most` is the size of its weights file."""
    parameters = modules = 0

    def add_parameter(_: nn.Module, __: str, parameter: Any) -> None:
        nonlocal parameters
        parameters += parameter.numel() if parameter is not None else 0
        if most is not None and parameters > most:
            raise InputError(
                f"model {name} has more parameters than its weights file has bytes: the file is "
                "incomplete, or model.args are not those that it was trained with"
            )
        check(parameters, PARAMETERS, "parameters")

    def add_module(*_: Any) -> None:
        nonlocal modules
        modules += 1
        check(modules, MODULES, "modules")

    def check(count: int, limit: int, what: str) -> None:
        if count > limit:
            raise InputError(
                f"model {name} would have more than {limit:,} {what}; use smaller model.args, or "
                "name a network of your own as package.module:callable"
            )

    hooks = [
        register_module_parameter_registration_hook(add_parameter),
        register_module_module_registration_hook(add_module),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
