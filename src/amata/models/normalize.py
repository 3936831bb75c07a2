"""Input normalisation as the first layer of a network, so that attacks work on images in [0, 1]."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from amata.errors import InputError


class Normalize(nn.Module):
    """(x - mean) / std per channel; the identity when neither is given.

    The constants are not in the state dict, so weights trained elsewhere load.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise InputError("mean and std go together; give both or neither")
        if mean is not None and std is not None and (len(mean) != len(std) or min(std) <= 0):
            raise InputError(
                f"mean = {list(mean)} and std = {list(std)} must have the same length, and every "
                "std must be above 0"
            )
        self.register_buffer(
            "mean", None if mean is None else torch.tensor(mean).view(-1, 1, 1), persistent=False
        )
        self.register_buffer(
            "std", None if std is None else torch.tensor(std).view(-1, 1, 1), persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std


class Normalized(nn.Module):
    """Any network behind a normalisation layer."""

    def __init__(self, net: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalize = normalize
        self.net = net
        if isinstance(getattr(net, "first_layer", None), str):
            self.first_layer = f"net.{net.first_layer}"

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.normalize(x))


CONSTANTS = {"mean": "mean", "mu": "mean", "std": "std", "sigma": "std"}
"""The names under which other programs keep the constants of their normalisation layer."""


def drop_constants(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A state dict of another program without the constants of its normalisation layer, where the
    model normalises by the same ones."""
    normalize = next((m for m in model.modules() if isinstance(m, Normalize)), None)

    def known(name: str, value: Any) -> bool:
        constant = getattr(normalize, CONSTANTS.get(name.rpartition(".")[2], ""), None)
        if constant is None or not isinstance(value, Tensor):
            return False
        flat = value.flatten().to(constant)
        return len(flat) == len(constant) and torch.allclose(flat, constant.flatten())

    own = model.state_dict()
    dropped = [k for k, v in state.items() if k not in own and known(k, v)]
    return {k: v for k, v in state.items() if k not in dropped} if dropped else state
