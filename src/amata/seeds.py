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
