# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""BatchNorm in train mode as Triton kernels, for channels_last tensors. A tensor is a matrix here:
one row per pixel of the batch, one column per channel.

Sums over rows take two kernels: each program adds up a range of rows, then the ranges are added up
in a fixed order, so results are deterministic.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64
"""Channels of a tile: 128 bytes in bf16."""
TILE = 8192
"""Elements of a tile."""
WARPS = 4
PROGRAMS_PER_SM = 4
PARTS = 512
"""The most ranges of rows."""


@triton.jit
def _tile(row, end, column, channels, ROWS: tl.constexpr):
    rows = row + tl.arange(0, ROWS)
    mask = (rows < end)[:, None] & (column < channels)[None, :]
    return rows.to(tl.int64)[:, None] * channels + column[None, :], mask


@triton.jit
def _store_sums(partial, s1, s2, column, channels):
    out = partial + tl.program_id(0) * 2 * channels + column
    tl.store(out, tl.sum(s1, 0), mask=column < channels)
    tl.store(out + channels, tl.sum(s2, 0), mask=column < channels)


@triton.jit
def _load_sums(partial, parts, column, channels, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)[:, None]
    at = partial + part * 2 * channels + column[None, :]
    mask = (part < parts) & (column < channels)[None, :]
    s1 = tl.load(at, mask=mask, other=0.0)
    s2 = tl.load(at + channels, mask=mask, other=0.0)
    return tl.sum(s1, 0), tl.sum(s2, 0)


@triton.jit
def _statistics(
    x, partial, rows, channels, rows_per_program, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Sums of x - k and (x - k)^2 with k = the first row: x^2 alone would lose the variance of a
    channel whose mean is large."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.load(x + column, mask=column < channels, other=0.0).to(tl.float32)
    s1 = tl.zeros((ROWS, COLUMNS), tl.float32)
    s2 = tl.zeros((ROWS, COLUMNS), tl.float32)
    start = tl.program_id(0) * rows_per_program
    end = tl.minimum(start + rows_per_program, rows)
    for row in range(start, end, ROWS):
        at, mask = _tile(row, end, column, channels, ROWS)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - k[None, :], 0.0)
        s1 += value
        s2 += value * value
    _store_sums(partial, s1, s2, column, channels)


@triton.jit
def _finish_statistics(
    x,
    partial,
    mean,
    rstd,
    var,
    rows,
    channels,
    parts,
    eps,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    live = column < channels
    s1, s2 = _load_sums(partial, parts, column, channels, PARTS)
    k = tl.load(x + column, mask=live, other=0.0).to(tl.float32)
    shift = s1 / rows
    variance = tl.maximum(s2 / rows - shift * shift, 0.0)
    tl.store(mean + column, k + shift, mask=live)
    tl.store(rstd + column, 1.0 / tl.sqrt(variance + eps), mask=live)
    tl.store(var + column, variance * (rows / (rows - 1)), mask=live)


@triton.jit
def _load_layer(mean, rstd, weight, bias, column, channels):
    """What normalises these channels, each as a row."""
    live = column < channels
    m = tl.load(mean + column, mask=live, other=0.0)[None, :]
    r = tl.load(rstd + column, mask=live, other=0.0)[None, :]
    w = tl.load(weight + column, mask=live, other=0.0).to(tl.float32)[None, :]
    b = tl.load(bias + column, mask=live, other=0.0).to(tl.float32)[None, :]
    return m, r, w, b


@triton.jit
def _normalise(
    x,
    y,
    mean,
    rstd,
    weight,
    bias,
    rows,
    channels,
    rows_per_program,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m, r, w, b = _load_layer(mean, rstd, weight, bias, column, channels)
    start = tl.program_id(0) * rows_per_program
    end = tl.minimum(start + rows_per_program, rows)
    for row in range(start, end, ROWS):
        at, mask = _tile(row, end, column, channels, ROWS)
        value = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - m) * r * w + b
        if RELU:
            value = tl.where(value > 0, value, value * 0.0)  # NaN stays NaN
        tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _sums(
    g,
    x,
    mean,
    rstd,
    weight,
    bias,
    partial,
    rows,
    channels,
    rows_per_program,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m, r, w, b = _load_layer(mean, rstd, weight, bias, column, channels)
    s1 = tl.zeros((ROWS, COLUMNS), tl.float32)
    s2 = tl.zeros((ROWS, COLUMNS), tl.float32)
    start = tl.program_id(0) * rows_per_program
    end = tl.minimum(start + rows_per_program, rows)
    for row in range(start, end, ROWS):
        at, mask = _tile(row, end, column, channels, ROWS)
        grad = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
        hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - m) * r
        if RELU:
            grad = tl.where(hat * w + b > 0, grad, 0.0)
        s1 += grad
        s2 += grad * hat
    _store_sums(partial, s1, s2, column, channels)


@triton.jit
def _finish_sums(partial, total, dot, channels, parts, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s1, s2 = _load_sums(partial, parts, column, channels, PARTS)
    tl.store(total + column, s1, mask=column < channels)
    tl.store(dot + column, s2, mask=column < channels)


@cache
def _programs(device: torch.device) -> int:
    """How many programs occupy the device."""
    if device.type != "cuda":
        return 4
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


class Plan:
    """How the rows and columns of a tensor are divided."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // self.channels
        width = min(COLUMNS, triton.next_power_of_2(self.channels))
        height = TILE // width
        across = triton.cdiv(self.channels, width)
        down = max(1, min(triton.cdiv(self.rows, height), _programs(x.device) // across, PARTS))
        self.rows_per_program = height * triton.cdiv(triton.cdiv(self.rows, height), down)
        self.parts = triton.cdiv(self.rows, self.rows_per_program)
        self.grid = (self.parts, across)
        self.tile = {"ROWS": height, "COLUMNS": width, "num_warps": WARPS}
        self.finish_grid = (triton.cdiv(self.channels, 8),)
        self.finish_tile = {"PARTS": PARTS, "COLUMNS": 8, "num_warps": 8}

    def partial_sums(self, x: Tensor) -> Tensor:
        return x.new_empty((self.parts, 2, self.channels), dtype=torch.float32)


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `amata::batch_norm`, in three kernels."""
    x = x.contiguous(memory_format=torch.channels_last)
    plan, y = Plan(x), torch.empty_like(x)
    mean, rstd, var = (x.new_empty(plan.channels, dtype=torch.float32) for _ in range(3))
    partial, shape = plan.partial_sums(x), (plan.rows, plan.channels)
    _statistics[plan.grid](x, partial, *shape, plan.rows_per_program, **plan.tile)
    _finish_statistics[plan.finish_grid](
        x, partial, mean, rstd, var, *shape, plan.parts, eps, **plan.finish_tile
    )
    _normalise[plan.grid](
        x, y, mean, rstd, weight, bias, *shape, plan.rows_per_program, relu, **plan.tile
    )
    return y, mean, rstd, var


def batch_norm_sums(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """As `amata::batch_norm_sums`, in two kernels."""
    g, x = (t.contiguous(memory_format=torch.channels_last) for t in (g, x))
    plan = Plan(x)
    total, dot = (torch.empty_like(mean) for _ in range(2))
    partial, shape = plan.partial_sums(x), (plan.rows, plan.channels)
    _sums[plan.grid](
        g, x, mean, rstd, weight, bias, partial, *shape, plan.rows_per_program, relu, **plan.tile
    )
    _finish_sums[plan.finish_grid](
        partial, total, dot, plan.channels, plan.parts, **plan.finish_tile
    )
    return total, dot
