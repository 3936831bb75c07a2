"""The device that a recipe asks for."""

import torch

from amata.engine import local_device
from amata.errors import InputError


def resolve_device(name: str, asked: str = "--set train.device=") -> torch.device:
    """The device that a recipe asks for, or whoever `asked` for it; "auto" is the GPU where there is one."""
    key = asked.removeprefix("--set ").rstrip("= ")
    if name in ("auto", "cuda") and (own := local_device()) is not None:  # of several processes, each has its own
        return own
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{key} = {name!r} is no device; use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise InputError(f"{key} = {name!r}, but {torch.cuda.device_count()} GPUs are visible; use {asked}cpu")
    return device
