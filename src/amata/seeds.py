"""Randomness without hidden state: every draw depends on (seed, epoch, batch, purpose) alone."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def derive(*keys: int | str) -> int:
    """A 63-bit seed that depends on every key and on their order."""
    digest = hashlib.sha256(repr(keys).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Rows(NamedTuple):
    """A slice of a batch: rows `first` up to, not including, `last` of `total`."""

    first: int
    last: int
    total: int


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A new generator on `device`, seeded by the keys alone."""
    return torch.Generator(device=device).manual_seed(derive(*keys))


def seed_global(seed: int, device: torch.device) -> None:
    """Seed the global generators that layers such as dropout draw from: those of the CPU and of
    `device`. `torch.manual_seed` seeds all devices, which takes far longer."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def draw(
    kind: Callable[..., Tensor],
    rng: torch.Generator,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    *,
    rows: Rows | None = None,
) -> Tensor:
    """`kind` (torch.rand or torch.randn) of a shape whose first dimension is the samples.

    With `rows`, the numbers of the whole batch are drawn and those rows are returned. Each sample
    then gets the same numbers, however processes or gradient accumulation divide its batch.
    """
    if rows is None:
        return kind(shape, generator=rng, device=device, dtype=dtype)
    whole = kind((rows.total, *shape[1:]), generator=rng, device=device, dtype=dtype)
    return whole[rows.first : rows.last]


class Noise(NamedTuple):
    """Gaussian noise for the images of a batch, new in every step of an attack."""

    std: float
    rng: torch.Generator
    rows: Rows | None = None

    def draw(self, x: Tensor, active: Tensor) -> Tensor:
        """For the images `active` of the batch x. On a CPU only these draw, unless x is part of a
        larger batch; on a GPU all do, because their number is not known without waiting."""
        if x.device.type == "cpu" and self.rows is None:
            shape = (len(active), *x.shape[1:])
            return self.std * draw(torch.randn, self.rng, shape, x.device, x.dtype)
        return self.std * self.whole(x)[active]

    def whole(self, x: Tensor) -> Tensor:
        """For all images of the batch x, with a standard deviation of one."""
        return draw(torch.randn, self.rng, tuple(x.shape), x.device, x.dtype, rows=self.rows)
