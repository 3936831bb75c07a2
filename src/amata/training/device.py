"""Devices by name."""

import torch

from amata.distributed import local_device
from amata.errors import InputError


def resolve_device(
    name: str, key: str = "train.device", hint: str = "--set train.device=cpu"
) -> torch.device:
    """The device `name`, which the option `key` gave; "auto" is the GPU if there is one."""
    # With several processes, each has its own GPU.
    if name in ("auto", "cuda") and (own := local_device()) is not None:
        return own
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(
            f"{key} = {name!r} is not a device; use auto, cpu, cuda or cuda:N"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"{key} = {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise InputError(
            f"{key} = {name!r}, but {torch.cuda.device_count()} GPUs are visible; use {hint}"
        )
    return device
