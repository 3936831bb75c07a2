"""The engine's verbs in plain eager PyTorch: the reference that the tests trust and every faster engine is held equal to."""

from typing import Literal

import torch
from torch import Tensor, nn

from amata.engine.average import WeightAverage
from amata.losses import Loss, ce

Mode = Literal["eval", "train"]


class PlainNet:
    """A network being trained, seen through the verbs `input_grad`, `backward` and `apply`.

    `attack_mode` is the mode of the modules during `input_grad`. "eval": BatchNorm uses its running statistics and leaves them alone,
    dropout is off. "train": BatchNorm uses the statistics of the attacked batch and updates the running ones, dropout is on.
    `backward` always runs in train mode.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Loss = ce,
        attack_loss: Loss = ce,
        attack_mode: Mode = "eval",
        average: WeightAverage | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.attack_loss = attack_loss
        self.attack_mode = attack_mode
        self.average = average
        self.grad_evals = 0
        """Full-network gradient evaluations so far, in images."""
        self.last_loss: Tensor | None = None
        """The batch-mean training loss of the last `backward`, left on its device."""

    def input_grad(self, x: Tensor, y: Tensor) -> Tensor:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        # Summed, not averaged: each sample's own gradient. Autograd is asked for x alone, so weight gradients are never computed.
        (g,) = torch.autograd.grad(self.attack_loss(self.model(x), y).sum(), x)
        self.grad_evals += len(x)
        return g

    def backward(self, x: Tensor, y: Tensor, *, wrt_input: bool = False) -> Tensor | None:
        self.model.train()
        x = x.detach().requires_grad_(wrt_input)
        loss = self.loss(self.model(x), y).mean()
        loss.backward()
        self.grad_evals += len(x)
        self.last_loss = loss.detach()
        return x.grad

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update()
