"""The engine's verbs in plain eager PyTorch: the reference that the tests trust and every faster engine is held equal to."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from amata.engine.average import WeightAverage
from amata.engine.split import FirstLayer
from amata.losses import Loss, ce

Mode = Literal["eval", "train"]


class PlainNet:
    """A network being trained, seen through the verbs `input_grad`, `backward` and `apply`.

    `attack_mode` is the mode of the modules during `input_grad`. "eval": BatchNorm uses its running statistics and leaves them alone,
    dropout is off. "train": BatchNorm uses the statistics of the attacked batch and updates the running ones, dropout is on.
    `backward` always runs in train mode, and so do the split verbs.
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
        first_layer: str | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.attack_loss = attack_loss
        self.attack_mode = attack_mode
        self.average = average
        self.first = FirstLayer(model, first_layer)
        self.grad_evals = 0
        """Full-network gradient evaluations so far, in images."""
        self.first_layer_evals = 0
        """Gradient evaluations of the first layer alone, in images."""
        self.last_loss: Tensor | None = None
        """The batch-mean training loss of the last pass that trained weights, left on its device."""

    def logits(self, x: Tensor) -> Tensor:
        self.model.train(self.attack_mode == "train")
        with torch.no_grad():
            return self.model(x)

    def input_grad(self, x: Tensor, y: Tensor, *, loss: Loss | None = None) -> Tensor:
        return self._input_grad(x, y, loss or self.attack_loss)[0]

    def input_grad_and_logits(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self._input_grad(x, y, self.attack_loss)

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self.model(x)
        # Summed, not averaged: each sample's own gradient. Autograd is asked for x alone, so weight gradients are never computed.
        (g,) = torch.autograd.grad(loss(z, y).sum(), x)
        self.grad_evals += len(x)
        return g, z.detach()

    def backward(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        loss: Callable[..., Tensor] | None = None,
        scale: float = 1.0,
        wrt_input: bool = False,
    ) -> Tensor | None:
        self.model.train()
        inputs = [t.detach().requires_grad_(wrt_input) for t in (x if isinstance(x, tuple) else (x,))]
        objective: Callable[..., Tensor] = loss or self.loss
        value = objective(*[self.model(t) for t in inputs], y).mean()
        (value * scale if scale != 1 else value).backward()
        self.grad_evals += sum(len(t) for t in inputs)
        self.last_loss = value.detach()
        return inputs[0].grad

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update()

    def costate(self, x: Tensor, y: Tensor, *, first: bool) -> Tensor:
        self.model.train()
        with self.first.cut() as cut:
            loss = self.loss(self.model(x.detach()), y).mean()
        loss.backward()
        p = cut.behind.grad
        assert p is not None
        if first and cut.before.requires_grad:
            cut.before.backward(p)
        self.grad_evals += len(x)
        self.last_loss = loss.detach()
        return p

    def first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((self._first(x) * p).sum(), x)
        return g

    def first_backward(self, x: Tensor, p: Tensor) -> None:
        product = (self._first(x.detach()) * p).sum()
        if product.requires_grad:  # a first layer may have no weights
            product.backward()

    def _first(self, x: Tensor) -> Tensor:
        self.model.train()
        self.first_layer_evals += len(x)
        return self.first(x)
