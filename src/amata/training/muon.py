"""Muon (Jordan et al. 2024): SGD with momentum whose matrix updates are orthogonalised."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from amata.engine.cudnn import tf32
from amata.engine.ema import descend
from amata.polar import STEEP, gram_factors

ROUNDS = (3, 2)
"""Applications of the quintic between two Gram matrices. One Gram matrix for all five would lose
small singular values: they are squared in it."""

EPS = 1e-7
"""Added to the norm of a matrix, so that one without a gradient stays small."""
FAINT = 1e-9
"""The share of a matrix's largest entry below which an entry hardly changes an update in float32.
Products of four larger ones are not denormal."""
FAINT_MATRIX = 1e-18
"""Entries below this hardly change an update in any matrix: far below EPS."""
LEAST_MOMENTUM = 1e-30
"""On a CPU, smaller momenta are zero."""

SMALLEST_ON_GPU = 256
"""A GPU multiplies smaller matrices no faster, so they are padded to this side and join one
batch."""


def orthogonal(*stacks: Tensor) -> list[Tensor]:
    """U V^T of each matrix U S V^T of each stack, with singular values of 0.7 to 1.2 instead of 1
    (Newton-Schulz: matrix products only).

    The quintic is applied to Gram matrices, as wide as the smaller side of X; all of one width are
    one batch, whatever the other side is. A GPU rounds products to TF32; bf16 would be too coarse
    for Gram matrices.
    """
    xs = [s if s.dtype == torch.float64 else without_denormals(s.float()) for s in stacks]
    widths: dict[int, list[int]] = {}
    for index, x in enumerate(xs):
        width = max(min(x.shape[-2:]), SMALLEST_ON_GPU if x.is_cuda else 0)
        widths.setdefault(width, []).append(index)
    with tf32(True):
        for width, indices in widths.items():
            batch = [xs[index] for index in indices]
            for number, count in enumerate(ROUNDS):
                gram = torch.cat([_gram(x, width) for x in batch])
                scale = None
                if number == 0:  # X divided by its norm; the trace is the square of that
                    norms = gram.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt() + EPS
                    scale = norms.reciprocal()[:, None, None]
                    gram *= scale * scale
                factors = gram_factors(gram, (STEEP,) * count)
                if scale is not None:
                    factors *= scale
                parts = factors.split([len(x) for x in batch])
                batch = [_times(x, q) for x, q in zip(batch, parts, strict=True)]
            for index, x in zip(indices, batch, strict=True):
                xs[index] = x
    return [x.to(s.dtype) for x, s in zip(xs, stacks, strict=True)]


def without_denormals(x: Tensor) -> Tensor:
    """Each matrix with zeros in place of entries that are next to nothing. Products of such entries
    are denormal numbers, with which a CPU computes up to a hundred times as slowly."""
    if x.is_cuda:
        return x
    size = x.abs()
    least = (FAINT * size.amax((-2, -1), keepdim=True)).clamp(min=FAINT_MATRIX)
    return x.masked_fill(size < least, 0.0)


def _is_tall(x: Tensor) -> bool:
    return x.shape[-2] > x.shape[-1]


def _gram(x: Tensor, width: int) -> Tensor:
    """X X^T, or X^T X if that is smaller, padded with zeros."""
    gram = x.mT @ x if _is_tall(x) else x @ x.mT
    missing = width - gram.shape[-1]
    return nn.functional.pad(gram, (0, missing, 0, missing)) if missing else gram


def _times(x: Tensor, q: Tensor) -> Tensor:
    side = min(x.shape[-2:])
    q = q[:, :side, :side]
    return x @ q if _is_tall(x) else q @ x


class Muon(torch.optim.Optimizer):
    """Groups with `orthogonal` hold weights of two or more dimensions; all dimensions but the first
    are flattened. Other groups get SGD with momentum. Weight decay is decoupled: weights shrink by
    lr * weight_decay."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float, nesterov: bool
    ) -> None:
        super().__init__(
            groups,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "weight_decay": 0.0,
                "orthogonal": False,
            },
        )

    takes_lr_tensor = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        assert closure is None, "closures are not supported"
        for group in self.param_groups:
            if weights := self._moving(group):
                updates, lr, decay = self._directions(group), group["lr"], group["weight_decay"]
                if isinstance(lr, Tensor):  # on a GPU, so that a CUDA graph can record the step
                    descend(weights, updates, lr=lr, decay=decay, maximize=False)
                else:
                    torch._foreach_mul_(weights, 1 - lr * decay)
                    torch._foreach_add_(weights, updates, alpha=-lr)
        return None

    def _moving(self, group: dict[str, Any]) -> list[Tensor]:
        return [p for p in group["params"] if p.grad is not None]

    def _momenta(self, weights: list[Tensor]) -> list[Tensor]:
        for p in weights:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in weights]

    def _directions(self, group: dict[str, Any]) -> list[Tensor]:
        weights = self._moving(group)
        grads: list[Tensor] = [p.grad for p in weights]  # type: ignore[misc]
        momenta = self._momenta(weights)
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, grads)
        for momentum in momenta:  # of a weight without a gradient: it falls for ever
            if not momentum.is_cuda:
                momentum.masked_fill_(momentum.abs() < LEAST_MOMENTUM, 0.0)
        updates = (
            list(torch._foreach_add(grads, momenta, alpha=group["momentum"]))
            if group["nesterov"]
            else momenta
        )
        return _made_orthogonal(updates) if group["orthogonal"] else updates


def _made_orthogonal(updates: list[Tensor]) -> list[Tensor]:
    """Each update orthogonalised. A matrix with more rows than columns is scaled by the root of
    their ratio, so that a layer's output changes as much as with a square one."""
    made: list[Tensor] = list(updates)
    matrices = [_matrix(update) for update in updates]
    shapes: dict[torch.Size, list[int]] = {}
    for index, matrix in enumerate(matrices):
        shapes.setdefault(matrix.shape, []).append(index)
    stacks = orthogonal(
        *(torch.stack([matrices[index] for index in same]) for same in shapes.values())
    )
    for ((rows, columns), same), stack in zip(shapes.items(), stacks, strict=True):
        if rows > columns:
            stack *= (rows / columns) ** 0.5
        for index, matrix in zip(same, stack, strict=True):
            made[index] = _like(updates[index], matrix)
    return made


def _columns(update: Tensor) -> list[int]:
    """All dimensions but the first, in the order in which they are in memory. The order of columns
    does not matter: (U S V^T P) becomes U V^T P."""
    return sorted(range(1, update.dim()), key=update.stride, reverse=True)


def _matrix(update: Tensor) -> Tensor:
    return update.permute(0, *_columns(update)).flatten(1)


def _like(update: Tensor, matrix: Tensor) -> Tensor:
    """The inverse of `_matrix`, in the memory layout of the update."""
    columns = _columns(update)
    made = matrix.view(update.shape[0], *(update.shape[d] for d in columns))
    made = made.permute(0, *(1 + columns.index(d) for d in range(1, update.dim())))
    return made if made.stride() == update.stride() else torch.empty_like(update).copy_(made)
