"""Where attacks get random numbers from: the caller's generator, or torch's global one."""

import torch

from amata.errors import InputError


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A 63-bit seed drawn from `generator`, or from torch's global CPU generator."""
    _check(generator)
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device))


def generator_on(device: torch.device, generator: torch.Generator | None) -> torch.Generator:
    """A generator on `device`: the given one if it is there, else a new one seeded from it.

    None means fresh randomness, seeded from torch's global generator.
    """
    _check(generator)
    if generator is not None and generator.device == device:
        return generator
    return torch.Generator(device).manual_seed(draw_seed(generator))


def _check(generator: object) -> None:
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator = {generator!r} must be a torch.Generator or None")
