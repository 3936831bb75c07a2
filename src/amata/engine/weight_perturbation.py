"""The adversarial weight perturbation of AWP: where the weights are moved, and back."""

import torch
from torch import Tensor, nn


class WeightPerturbation:
    """Of the weights with a gradient and more than one dimension: matrices and filters, not biases
    and BatchNorm's. `move` and `restore` change tensors in place and never wait for the device, so
    that a CUDA graph can record them."""

    def __init__(self, model: nn.Module) -> None:
        used = [p for p in model.parameters() if p.grad is not None]
        self.gradients: list[Tensor] = [p.grad for p in used if p.grad is not None]
        self.weights: list[Tensor] = [p.detach() for p in used if p.dim() > 1]
        self.directions: list[Tensor] = [
            g for p, g in zip(used, self.gradients, strict=True) if p.dim() > 1
        ]
        self.kept = [torch.empty_like(w) for w in self.weights]

    @torch.no_grad()
    def move(self, gamma: float) -> None:
        """w <- w + gamma |w| g / (|g| + 1e-20), tensor by tensor, with the gradients g so far;
        these are then zero."""
        if self.weights:
            torch._foreach_copy_(self.kept, self.weights)
            lengths = torch._foreach_norm(self.directions)
            torch._foreach_add_(lengths, 1e-20)
            scales = torch._foreach_div(torch._foreach_norm(self.weights), lengths)
            torch._foreach_mul_(scales, gamma)
            torch._foreach_add_(self.weights, torch._foreach_mul(self.directions, scales))
        if self.gradients:
            torch._foreach_zero_(self.gradients)

    @torch.no_grad()
    def restore(self) -> None:
        """The weights from before, bit for bit."""
        if self.weights:
            torch._foreach_copy_(self.weights, self.kept)
