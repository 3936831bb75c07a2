"""Ascent in which samples stop one by one, on CUDA graphs and without idle time on the device."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from amata.seeds import Noise
from amata.threat import Ball

BUCKETS: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)
"""Attacks on part of a batch are padded to the next of these fractions of it."""

LAG = 2
"""How many steps later the host reads the number of samples left. The device then still has a step
to do, so it never waits for the host."""


class Replayable(Protocol):
    def replay(self) -> None: ...


Record = Callable[[Callable[[], None], list[Tensor]], Replayable]
"""Records work that changes these tensors, which are as before afterwards."""
GoesOn = Callable[..., tuple[Tensor, ...]]


def bucket_size(n: int, full: int) -> int:
    """The smallest bucket of a batch of `full` images that holds n of them."""
    return next(s for s in sorted(math.ceil(share * full) for share in BUCKETS) if s >= n)


def stop_or_step(
    ball: Ball,
    goes_on: GoesOn,
    std: float | None,
    alpha: Tensor,
    x: Tensor,
    x_adv: Tensor,
    y: Tensor,
    g: Tensor,
    z: Tensor,
    active: Tensor,
    noise: Tensor | None,
    *state: Tensor,
) -> tuple[Tensor, ...]:
    """One step of the samples that go on; the others keep their images."""
    goes, *state_now = goes_on(ball, x_adv, y, g, z, *state)
    active = active & goes
    region = ball.around(x)
    moved = region.ascend(x_adv, g, alpha)
    if std is not None and noise is not None:
        moved = moved + std * noise
    rows = active.view(-1, *[1] * (x.dim() - 1))
    return active, torch.where(rows, region.project(moved), x_adv), *state_now


class Bucket:
    """The samples still attacked, in static tensors of one size, and one recorded step on them."""

    def __init__(
        self,
        rows: Sequence[Tensor],
        noisy: bool,
        step: Callable[..., tuple[Tensor, ...]],
        evals: Tensor,
        record: Record,
    ) -> None:
        """`rows` are x, x_adv, y and the state of `size` samples. `step` gets them with the noise
        and the mask of the active ones. `evals` is increased by the samples that a step costs."""
        self.x, self.x_adv, self.y, *self.state = [t.detach().clone() for t in rows]
        self.noise = torch.zeros_like(self.x) if noisy else None
        self.index = torch.arange(len(self.x), device=self.x.device)
        """Where each row is in the batch."""
        self.active = torch.ones_like(self.index, dtype=torch.bool)
        self.left = self.active.sum()

        def work() -> None:
            evals.add_(self.active.sum())
            active, x_adv, *state = step(
                self.x, self.x_adv, self.y, self.active, self.noise, *self.state
            )
            # The state may be another static tensor, such as the image before the step.
            state = [v if v is s else v.clone() for s, v in zip(self.state, state, strict=True)]
            self.x_adv.copy_(x_adv)
            self.active.copy_(active)
            self.left.copy_(active.sum())
            for static, value in zip(self.state, state, strict=True):
                static.copy_(value)

        self.graph = record(work, [evals, self.x_adv, self.active, self.left, *self.state])

    def __len__(self) -> int:
        return len(self.x)

    def rows(self) -> list[Tensor]:
        return [self.x, self.x_adv, self.y, *self.state]

    def load(self, rows: Sequence[Tensor]) -> None:
        """Take a batch, which may have fewer rows: the others are not active."""
        n = len(rows[0])
        for static, given in zip(self.rows(), rows, strict=True):
            (static if n == len(static) else static[:n]).copy_(given)
        torch.arange(len(self), out=self.index)
        torch.lt(self.index, n, out=self.active)
        self.left.fill_(n)

    def move_to(self, smaller: "Bucket") -> None:
        """Gather the active samples in a smaller bucket that has room for all of them."""
        order = self.active.logical_not().int().argsort(stable=True)[: len(smaller)]
        for mine, theirs in zip(
            [*self.rows(), self.index, self.active],
            [*smaller.rows(), smaller.index, smaller.active],
            strict=True,
        ):
            torch.index_select(mine, 0, order, out=theirs)


class EarlyStop:
    """Projected ascent whose samples stop by themselves.

    Every step is one graph over all rows of a bucket, in which rows that have stopped stay as they
    are. The number of samples left is copied to the host asynchronously. Samples only leave, so an
    old number is an upper bound: once it fits a smaller bucket, the active samples move there.
    """

    def __init__(
        self,
        input_grad: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        step: Callable[..., tuple[Tensor, ...]],
        evals: Tensor,
        full: Tensor,
        record: Record,
    ) -> None:
        """`full` is a batch of images of the largest size. `evals` counts, on the device, the
        samples of all steps."""
        self.evals, self.record = evals, record

        def one_step(
            x: Tensor, x_adv: Tensor, y: Tensor, active: Tensor, noise: Any, *state: Tensor
        ) -> tuple[Tensor, ...]:
            g, z = input_grad(x_adv, y)
            return step(x, x_adv, y, g, z, active, noise, *state)

        self.one_step = one_step
        self.buckets: dict[int, Bucket] = {}
        self.out = torch.empty_like(full)
        self.counts = CountReader(full.device)

    def __call__(
        self,
        x: Tensor,
        start: Tensor,
        y: Tensor,
        steps: int,
        state: Sequence[Tensor],
        noise: Noise | None,
    ) -> Tensor:
        n, full = len(x), len(self.out)
        rows = [x, start, y, *state]
        bucket = self._bucket(bucket_size(n, full), rows, noise)
        bucket.load(rows)
        for k in range(steps):
            if k >= LAG:
                left = self.counts.read(k - LAG)
                if left == 0:
                    break
                if (size := bucket_size(left, full)) < len(bucket):
                    self.out.index_copy_(0, bucket.index, bucket.x_adv)
                    smaller = self._bucket(size, bucket.rows(), noise)
                    bucket.move_to(smaller)
                    bucket = smaller
            if noise is not None and bucket.noise is not None:
                drawn = noise.whole(x)
                if len(bucket) < n:
                    torch.index_select(drawn, 0, bucket.index.clamp_max(n - 1), out=bucket.noise)
                else:
                    bucket.noise[:n].copy_(drawn)
            bucket.graph.replay()
            self.counts.copy(k, bucket.left)
        self.out.index_copy_(0, bucket.index, bucket.x_adv)
        return self.out[:n]

    def _bucket(self, size: int, rows: Sequence[Tensor], noise: Noise | None) -> Bucket:
        if size not in self.buckets:
            self.buckets[size] = Bucket(
                [_resized(t, size) for t in rows],
                noise is not None,
                self.one_step,
                self.evals,
                self.record,
            )
        return self.buckets[size]


def _resized(t: Tensor, size: int) -> Tensor:
    """The first rows of t, the last one repeated if there are too few."""
    n = len(t)
    return t[:size] if n >= size else torch.cat([t, t[-1:].expand(size - n, *t.shape[1:])])


class CountReader:
    """Numbers copied from the device to the host, one slot for each step of an attack."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.values: list[Tensor] = []
        self.events: list[torch.cuda.Event] = []

    def copy(self, slot: int, value: Tensor) -> None:
        """Begin to copy a number, after the work queued so far."""
        if slot == len(self.values):
            self.values.append(torch.zeros((), dtype=torch.long, pin_memory=self.on_gpu))
            self.events += [torch.cuda.Event()] if self.on_gpu else []
        self.values[slot].copy_(value, non_blocking=True)
        if self.on_gpu:
            self.events[slot].record()

    def read(self, slot: int) -> int:
        """The number, once its copy has arrived."""
        if self.on_gpu:
            self.events[slot].synchronize()
        return int(self.values[slot])
