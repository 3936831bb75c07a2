"""The images that an attack has not broken yet, in batches of a few sizes.

A GPU prepares its kernels for every new batch size. And asking how many images are left waits for
the device, so attacks ask once in many iterations. In between they work on broken images too, which
fill the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from amata.losses import correct

Judge = Callable[[Tensor], Tensor]
"""The logits of the model whose robustness is measured, where an attack runs on a copy of it."""

SIZES = 8
"""Batches are multiples of an eighth of the full batch."""


def padded_size(n: int, batch: int) -> int:
    """The least of the sizes of a full batch of `batch` that n images fit into.

    >>> [padded_size(n, 1000) for n in (1, 125, 126, 990)]
    [125, 125, 250, 1000]
    """
    part = -(-batch // SIZES)
    return min(-(-n // part) * part, batch)


def padded(rows: Tensor, batch: int) -> Tensor:
    """`rows`, repeated up to the padded size."""
    size = padded_size(len(rows), batch)
    return rows[torch.arange(size, device=rows.device) % len(rows)]


def judge_of(model: Any) -> Judge | None:
    """The judge that a copy of a model names."""
    return getattr(model, "judge", None)


def per_image(values: Tensor, x: Tensor) -> Tensor:
    """One value per image, shaped to broadcast over the images x."""
    return values.view(-1, *[1] * (x.dim() - 1))


def choose(which: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The images (or values) of a where `which`, else those of b."""
    return torch.where(per_image(which, a), a, b)


@dataclass
class Working:
    """Tensors with one row per image. Subclasses add an attack's own."""

    x: Tensor
    y: Tensor
    row: Tensor
    """The image's place in `Found`; padding has the place behind the last one."""
    broken: Tensor
    x_adv: Tensor
    """The adversarial image where broken, else x."""

    def take(self, rows: Tensor) -> Self:
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})


W = TypeVar("W", bound=Working)


class Found:
    """The adversarial images found so far for a batch, and which images are broken."""

    def __init__(self, x: Tensor, batch: int, judge: Judge | None = None) -> None:
        """`batch` is the size of a full batch, at least that of x. An image that the `judge`
        classifies correctly is not broken, whatever the attacked model says."""
        self.batch, self.n, self.judge = batch, len(x), judge
        # the last row is for padding
        self._x_adv = torch.cat([x, x[-1:]])
        self._broken = torch.zeros(len(x) + 1, dtype=torch.bool, device=x.device)

    @property
    def x_adv(self) -> Tensor:
        return self._x_adv[: self.n]

    @property
    def broken(self) -> Tensor:
        return self._broken[: self.n]

    def left(self) -> Tensor:
        """The rows that are not broken. Waits for the device."""
        return (~self.broken).nonzero().squeeze(1)

    def working(self, left: Tensor, x: Tensor, y: Tensor) -> Working:
        """The rows `left` of the batch, padded."""
        rows = padded(left, self.batch)
        padding = torch.arange(len(rows), device=x.device) >= len(left)
        return Working(x[rows], y[rows], rows.masked_fill(padding, self.n), padding, x[rows])

    def keep(self, work: Working) -> None:
        self._confirm(work)
        self._write(work)

    def _confirm(self, work: Working) -> None:
        if self.judge is not None:
            right = correct(self.judge(work.x_adv), work.y) & (work.row < self.n)
            work.broken = work.broken & ~right
            work.x_adv = choose(work.broken, work.x_adv, work.x)

    def _write(self, work: Working) -> None:
        self._x_adv[work.row] = work.x_adv
        self._broken[work.row] = work.broken

    def shrink(self, work: W) -> W | None:
        """The rows that are not broken, filled up with others to a batch size; None if all are
        broken. Waits for the device."""
        if padded_size(int((~work.broken).sum()), self.batch) >= len(work.row):
            return work
        self._confirm(work)
        self._write(work)
        left = int((~work.broken).sum())
        rows = work.broken.int().argsort(stable=True)[: padded_size(left, self.batch)]
        return work.take(rows) if left > 0 else None
