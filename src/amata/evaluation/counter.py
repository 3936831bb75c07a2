"""Gradient evaluations, counted."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class GradCounter(nn.Module):
    """A wrapper that counts gradient evaluations: one for each image and backward pass. Those that
    are not finite are counted on the device."""

    def __init__(self, model: nn.Module, judge: Callable[[Tensor], Tensor] | None = None) -> None:
        """With a `judge`, attacks take its word for which images are broken."""
        super().__init__()
        self.model, self.judge = model, judge
        self.grad_evals = 0
        self.non_finite = torch.zeros((), dtype=torch.long)
        self.training = model.training  # train() would change the model's mode

    def reset(self, device: torch.device) -> None:
        self.grad_evals = 0
        self.non_finite = torch.zeros((), dtype=torch.long, device=device)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            # the hook runs once for every gradient with respect to the images
            x = x.view_as(x)
            x.register_hook(self._count)
        return self.model(x)

    def _count(self, g: Tensor) -> None:
        self.grad_evals += len(g)
        # The sum of an image's gradient is finite only if all of it is.
        sums = g.sum(dim=tuple(range(1, g.dim())), dtype=torch.float32)
        self.non_finite = self.non_finite.to(g.device) + (~sums.isfinite()).sum()
