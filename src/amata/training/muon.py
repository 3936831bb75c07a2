"""Muon (Jordan et al. 2024): SGD with momentum whose matrix updates are orthogonalised."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of p(s) = a s + b s^3 + c s^5, which is steep at 0: five applications map singular
values above 0.01 into 0.7 to 1.2."""


def orthogonal(matrices: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T of a stack, with singular values of 0.7 to 1.2 instead of 1
    (Newton-Schulz: matrix products only)."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()  # the result is approximate anyway
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


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

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        assert closure is None, "closures are not supported"
        self.move(self.directions())
        return None

    def momenta(self) -> list[Tensor]:
        """The tensors that `directions` changes."""
        return [
            momentum
            for group in self.param_groups
            for momentum in self._momenta(self._moving(group))
        ]

    @torch.no_grad()
    def directions(self) -> list[list[Tensor]]:
        """The update directions of each group. The learning rate is not part of them, so an engine
        can record this as a CUDA graph."""
        return [self._directions(group) for group in self.param_groups]

    @torch.no_grad()
    def move(self, directions: list[list[Tensor]]) -> None:
        for group, updates in zip(self.param_groups, directions, strict=True):
            if weights := self._moving(group):
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _moving(self, group: dict[str, Any]) -> list[Tensor]:
        return [p for p in group["params"] if p.grad is not None]

    def _momenta(self, weights: list[Tensor]) -> list[Tensor]:
        for p in weights:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in weights]

    def _directions(self, group: dict[str, Any]) -> list[Tensor]:
        weights = self._moving(group)
        if not weights:
            return []
        grads: list[Tensor] = [p.grad for p in weights]  # type: ignore[misc]
        momenta = self._momenta(weights)
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, grads)
        updates = (
            list(torch._foreach_add(grads, momenta, alpha=group["momentum"]))
            if group["nesterov"]
            else momenta
        )
        return _made_orthogonal(updates) if group["orthogonal"] else updates


def _made_orthogonal(updates: list[Tensor]) -> list[Tensor]:
    """Each update orthogonalised, one stack per shape. A matrix with more rows than columns is
    scaled by the root of their ratio, so that a layer's output changes as much as with a square
    one."""
    made: list[Tensor] = list(updates)
    shapes: dict[torch.Size, list[int]] = {}
    for index, update in enumerate(updates):
        shapes.setdefault(update.shape, []).append(index)
    for shape, indices in shapes.items():
        stack = orthogonal(torch.stack([updates[index].flatten(1) for index in indices]))
        stack *= max(1.0, stack.shape[1] / stack.shape[2]) ** 0.5
        for index, matrix in zip(indices, stack, strict=True):
            # in the memory layout of the weight
            made[index] = torch.empty_like(updates[index]).copy_(matrix.view(shape))
    return made
