"""A network of any class, split after its first layer f_0: all that runs up to the output of one
named module."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from amata.errors import InputError, nearest


class _StopForward(Exception):
    """Raised by a forward hook to end a forward pass early; carries the first layer's output."""

    def __init__(self, z: Tensor) -> None:
        self.z = z


class Cut:
    """The first layer's output, before and after a cut in the autograd graph."""

    before: Tensor
    after: Tensor


class FirstLayer:
    """f_0 of a model. A call runs the model up to and including the module `name`, by default the
    one that the model names in `first_layer`."""

    def __init__(self, model: nn.Module, name: str | None) -> None:
        self.model, self.name = model, name

    @cached_property
    def module(self) -> nn.Module:
        name = self.name or getattr(self.model, "first_layer", None)
        if name is None:
            raise InputError(
                f"{type(self.model).__name__} does not name its first layer; set "
                "model.first_layer to a module's name"
            )
        modules = dict(self.model.named_modules())
        if name not in modules:
            raise InputError(
                f"model.first_layer = {name!r} is not a module of {type(self.model).__name__}; "
                f"{nearest(name, set(modules) - {''})}"
            )
        return modules[name]

    def __call__(self, x: Tensor) -> Tensor:
        # What a model's forward does before its first layer (normalise, reshape) is unknown, so the
        # model itself has to run. An exception is the only way out of the middle of its forward;
        # the layers behind, most of the work, are then never computed.
        def stop(module: nn.Module, args: Any, z: Tensor) -> None:
            raise _StopForward(z)

        handle = self.module.register_forward_hook(stop)
        try:
            self.model(x)
        except _StopForward as stopped:
            return stopped.z
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
            raise InputError(
                f"the first layer of {type(self.model).__name__} changes the images in place; set "
                "inplace=False there, or set model.first_layer to a later module"
            ) from None
        finally:
            handle.remove()
        raise InputError(
            f"the first layer of {type(self.model).__name__} is not used in its forward pass; "
            "set model.first_layer to a module that is"
        )

    @contextmanager
    def cut(self) -> Iterator[Cut]:
        """In the with block, a forward pass cuts its autograd graph at the first layer's output:
        backward stops there and leaves its gradient in `after.grad`."""
        cut = Cut()

        def split(module: nn.Module, args: Any, z: Tensor) -> Tensor:
            if hasattr(cut, "after"):  # the layers between the two calls would get no gradients
                raise InputError(
                    f"the first layer of {type(self.model).__name__} is called more than once in a "
                    "forward pass; set model.first_layer to a module that is called once"
                )
            cut.before, cut.after = z, z.detach().requires_grad_()
            return cut.after.clone()  # the next layer may work in place, which a leaf forbids

        handle = self.module.register_forward_hook(split)
        try:
            yield cut
        finally:
            handle.remove()

    def zero_to_add(self, x: Tensor, autocast: torch.autocast) -> Tensor | None:
        """A zero of the shape of f_0(x): added to f_0(x), its gradient is the co-state, which
        torch.compile can follow. None if f_0 is not called once in a forward pass."""
        found: list[Tensor] = []
        modes = [(m, m.training) for m in self.model.modules()]
        handle = self.module.register_forward_hook(lambda module, args, z: found.append(z))
        try:
            with torch.no_grad(), autocast:
                self.model.eval()(x.detach().clone())  # the statistics of BatchNorm stay
        finally:
            handle.remove()
            for module, mode in modes:
                module.training = mode
        return torch.zeros_like(found[0]).requires_grad_() if len(found) == 1 else None
