"""Networks by name: images in [0, 1] in, logits out, with normalisation inside.

A name is one of MODELS, another wide ResNet such as `wrn-28-10`, `timm/NAME` where timm is
installed, or an import path `package.module:callable` to anything that returns an `nn.Module`. If
the callable has parameters `in_channels`, `classes` or `num_classes`, they are filled in from the
data.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from amata.errors import InputError, shorten, unknown
from amata.models.imported import check_args, imported_model, names_code, origin, timm_model
from amata.models.normalize import Normalize, Normalized
from amata.models.preact_resnet import PreActResNet18
from amata.models.resnet import resnet18, resnet50
from amata.models.size import limited
from amata.models.small import LeNet, SmallCNN, TinyCNN
from amata.models.weights import load_state, load_weights, mismatch
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

__all__ = [
    "MODELS",
    "Normalize",
    "Normalized",
    "build",
    "built_in",
    "load_state",
    "load_weights",
    "mismatch",
    "names_code",
    "origin",
]


def built_in(name: str) -> tuple[Callable[..., nn.Module], dict[str, int]] | None:
    """What builds the built-in network `name`, and the arguments that are in the name.

    >>> built_in("wrn-28-10")
    (<class 'amata.models.wide_resnet.WideResNet'>, {'depth': 28, 'widen': 10})
    """
    if wide := re.fullmatch(r"wrn-([1-9][0-9]{0,4})-([1-9][0-9]{0,4})", name, re.ASCII):
        return WideResNet, {"depth": int(wide[1]), "widen": int(wide[2])}
    return (MODELS[name], {}) if name in MODELS else None


def build(
    name: str,
    *,
    in_channels: int,
    classes: int,
    args: dict[str, Any] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    trust: bool = False,
    most: int | None = None,
) -> nn.Module:
    """The network `name` with weights drawn from `seed` alone; torch's global generator is
    untouched. A built-in network of more than `most` parameters, the bytes of its
    weights file, is refused before it takes memory.

    A name that imports code (`package.module:callable`, or `timm/NAME` with arguments) is used with
    `trust=True` only: pass it if the name is your own.
    """
    args = {} if args is None else args
    if not isinstance(name, str) or not isinstance(args, dict):
        raise InputError(f"model {name!r} must be a name, and its arguments {args!r} a dict")
    normalize = Normalize(mean, std)
    if mean is not None and len(mean) != in_channels:
        raise InputError(
            f"model.mean has {len(mean)} values and the images have {in_channels} channels; give "
            "one value per channel"
        )
    if names_code(name, args) and not trust:
        raise InputError(f"model {name!r} imports code; pass trust=True if the name is your own")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "init"))
        if found := built_in(name):
            builder, named = found
            filled = {"in_channels": in_channels, "classes": classes, "normalize": normalize}
            filled |= named
            # model.args may set everything else.
            check_args(name, builder, args, set(filled))
            with _errors_of(name, args):
                # Count first, on a device where parameters take no memory.
                if args or named or most is not None:
                    with limited(name, most), torch.device("meta"):
                        builder(**filled, **args)
                return builder(**filled, **args)
        if name.startswith("timm/"):
            with _errors_of(name, args), limited(name, most):
                net = timm_model(name.removeprefix("timm/"), in_channels, classes, args)
        elif ":" in name:
            net = imported_model(
                name, args, {"in_channels": in_channels, "classes": classes, "num_classes": classes}
            )
        else:
            raise unknown("model", name, [*MODELS, "timm/NAME", "package.module:callable"])
    return net if mean is None else Normalized(net, normalize)


@contextlib.contextmanager
def _errors_of(name: str, args: dict[str, Any]) -> Iterator[None]:
    """Arguments that a network cannot be built from are an input error."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise InputError(
            f"model {name} cannot be built from model.args = {shorten(args)}: {shorten(error)}"
        ) from error
