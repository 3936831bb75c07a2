"""A network split after its first layer, whatever its class: everything up to the output of one
named module is f_0."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from amata.errors import InputError, nearest


class _Reached(Exception):
    """The first layer's output, carried out of a forward pass that need not go on."""

    def __init__(self, z: Tensor) -> None:
        self.z = z


class Cut:
    """The first layer's output on both sides of a cut in the graph."""

    before: Tensor
    behind: Tensor


class FirstLayer:
    """f_0 of a model: called, it runs the model up to and with the module `name`, or the one the
    model names in `first_layer`."""

    def __init__(self, model: nn.Module, name: str | None) -> None:
        self.model, self.name = model, name

    @cached_property
    def module(self) -> nn.Module:
        name = self.name or getattr(self.model, "first_layer", None)
        if name is None:
            raise InputError(
                f"{type(self.model).__name__} does not say which layer is its first; set "
                "model.first_layer to a module's name"
            )
        modules = dict(self.model.named_modules())
        if name not in modules:
            raise InputError(
                f"model.first_layer = {name!r} is no module of {type(self.model).__name__}; "
                f"{nearest(name, set(modules) - {''})}"
            )
        return modules[name]

    def __call__(self, x: Tensor) -> Tensor:
        def stop(module: nn.Module, args: Any, z: Tensor) -> None:
            raise _Reached(z)

        handle = self.module.register_forward_hook(stop)
        try:
            self.model(x)
        except _Reached as reached:
            return reached.z
        finally:
            handle.remove()
        raise InputError(
            f"the first layer of {type(self.model).__name__} takes no part in its forward "
            "pass; set model.first_layer"
        )

    @contextmanager
    def cut(self) -> Iterator[Cut]:
        """Inside, a forward pass is cut in two at the first layer's output: gradients stop there
        and are found at `behind`."""
        cut = Cut()

        def split(module: nn.Module, args: Any, z: Tensor) -> Tensor:
            cut.before, cut.behind = z, z.detach().requires_grad_()
            return cut.behind.clone()  # what follows may work in place, which a leaf does not allow

        handle = self.module.register_forward_hook(split)
        try:
            yield cut
        finally:
            handle.remove()
