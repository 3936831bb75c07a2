"""Randomness without hidden state: every draw is a function of (seed, epoch, batch, purpose)."""

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
    """Which rows of a whole batch somebody works on: `first` up to, not including, `last` of
    `total`."""

    first: int
    last: int
    total: int


class PartGenerator(torch.Generator):
    """The generator of a whole batch, in the hands of somebody who works on some of its rows."""

    rows: Rows


def generator(
    *keys: int | str, device: torch.device | str = "cpu", rows: Rows | None = None
) -> torch.Generator:
    """A fresh generator on `device`, seeded by the keys alone; with `rows`, one whose `draw` gives
    those rows of a whole batch's draw."""
    if rows is None:
        return torch.Generator(device=device).manual_seed(derive(*keys))
    made = PartGenerator(device=device)
    made.manual_seed(derive(*keys))
    made.rows = rows
    return made


def draw(
    kind: Callable[..., Tensor],
    rng: torch.Generator,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """`kind`, torch.rand or torch.randn, of a shape whose first entry counts samples.

    However a batch is divided among processes or passes, each sample gets the same numbers: those
    of the whole batch are drawn.
    """
    rows = getattr(rng, "rows", None)
    if rows is None or shape[0] != rows.last - rows.first:
        return kind(shape, generator=rng, device=device, dtype=dtype)
    return kind((rows.total, *shape[1:]), generator=rng, device=device, dtype=dtype)[
        rows.first : rows.last
    ]
