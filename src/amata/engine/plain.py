"""The engine's verbs in plain eager PyTorch: the reference that the tests trust and every faster
engine is held equal to.

Each verb counts what it costs and hands the work to a method of the same name with an underscore; a
faster engine replaces those alone.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from amata.distributed.process_group import Ranks
from amata.distributed.sync_batchnorm import SyncBatchNorm
from amata.engine.ema import EMA
from amata.engine.split import FirstLayer
from amata.losses import Loss, ce
from amata.threat import Region

Mode = Literal["eval", "train"]
Precision = Literal["fp32", "bf16"]


class PlainNet:
    """A network being trained, seen through the verbs `input_grad`, `backward` and `apply`.

    `attack_mode` is the mode of the modules during `input_grad`. "eval": BatchNorm uses its running
    statistics and leaves them alone, dropout is off. "train": BatchNorm uses the statistics of the
    attacked batch and updates the running ones, dropout is on. `backward` always runs in train
    mode, and so do the split verbs. In "bf16" the network computes under autocast; weights,
    gradients, losses and the optimiser stay in fp32.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Loss = ce,
        attack_loss: Loss = ce,
        attack_mode: Mode = "eval",
        ema: EMA | None = None,
        first_layer: str | None = None,
        precision: Precision = "fp32",
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.ranks = ranks or Ranks()
        self.syncs_in_forward = self.ranks.size > 1 and any(
            isinstance(m, SyncBatchNorm) for m in model.modules()
        )
        """Whether processes speak to each other in the middle of a pass."""
        self.precision = precision
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.optimizer = optimizer
        self.loss = loss
        self.attack_loss = attack_loss
        self.attack_mode = attack_mode
        self.ema = ema
        self.first = FirstLayer(model, first_layer)
        self.grad_evals = 0
        """Full-network gradient evaluations so far, in images."""
        self.first_layer_evals = 0
        """Gradient evaluations of the first layer alone, in images."""
        self.last_loss: Tensor | None = None
        """The batch-mean training loss of the last pass that trained weights, left on its
        device."""
        self.compile_seconds = 0.0
        """Time spent on making the verbs fast rather than on training."""
        self.share = 1.0
        """Of a batch that comes in parts, how much the part at hand is."""
        self.more = False
        """Whether another part of the batch will come: `apply` waits for the last."""
        self.samples = 0

    def describe(self) -> str:
        """Which path runs, in a few words."""
        return f"plain engine, {self.precision}"

    def weights_changed(self) -> None:
        """To be told when the weights were changed from outside, as by a checkpoint."""

    def logits(self, x: Tensor) -> Tensor:
        return self._logits(x)

    def input_grad(self, x: Tensor, y: Tensor, *, loss: Loss | None = None) -> Tensor:
        self.grad_evals += len(x)
        return self._input_grad(x, y, loss or self.attack_loss)[0]

    def input_grad_and_logits(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.grad_evals += len(x)
        return self._input_grad(x, y, self.attack_loss)

    def ascent(
        self,
        region: Region,
        x: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        *,
        loss: Loss | None = None,
    ) -> Tensor:
        self.grad_evals += steps * len(x)
        return self._ascent(region, x, y, steps, step_size, loss or self.attack_loss)

    def backward(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        loss: Callable[..., Tensor] | None = None,
        scale: float = 1.0,
        wrt_input: bool = False,
    ) -> Tensor | None:
        inputs = x if isinstance(x, tuple) else (x,)
        self.grad_evals += sum(len(t) for t in inputs)
        self.samples += len(y)
        self.last_loss, g = self._backward(
            inputs, y, loss or self.loss, scale * self._scale(y), wrt_input
        )
        return g

    def apply(self) -> None:
        if self.more:
            return
        if self.ranks.size > 1:
            self._agree()
        self._step()
        self.samples = 0
        if self.ema is not None:
            self.ema.update()

    def _agree(self) -> None:
        """Average weight gradients, and BatchNorm's running statistics, over the images of all
        processes."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        statistics = [b for b in self.model.buffers() if b.is_floating_point()]
        self.ranks.average([*gradients, *statistics], 1 if self.syncs_in_forward else self.samples)

    def _scale(self, y: Tensor) -> float:
        """What a loss counts for in the update: the part's share of its batch. Where BatchNorm lets
        gradients flow between processes, the losses of smaller parts must count for less before
        they do, not after."""
        if not self.syncs_in_forward:
            return self.share
        return self.share * len(y) * self.ranks.size / self.ranks.sum([len(y)])[0]

    def _step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def costate(self, x: Tensor, y: Tensor, *, first: bool) -> Tensor:
        self.grad_evals += len(x)
        self.samples += len(y)
        self.last_loss, p = self._costate(x, y, first, self._scale(y))
        return p

    def first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        self.first_layer_evals += len(x)
        return self._first_grad(x, p)

    def first_backward(self, x: Tensor, p: Tensor) -> None:
        self.first_layer_evals += len(x)
        self._first_backward(x, p)

    # The work itself

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
        )

    def _forward(self, x: Tensor) -> Tensor:
        with self._autocast():
            z = self.model(x)
        return z.float() if z.dtype == torch.bfloat16 else z

    def _logits(self, x: Tensor) -> Tensor:
        self.model.train(self.attack_mode == "train")
        with torch.no_grad():
            return self._forward(x)

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self._forward(x)
        # Summed, not averaged: each sample's own gradient. Autograd is asked for x alone, so weight
        # gradients are never computed.
        (g,) = torch.autograd.grad(loss(z, y).sum(), x)
        return g, z.detach()

    def _ascent(
        self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, loss: Loss
    ) -> Tensor:
        for _ in range(steps):
            g, _ = self._input_grad(x, y, loss)
            x = region.project(region.ascend(x, g, step_size))
        return x

    def _backward(
        self,
        inputs: tuple[Tensor, ...],
        y: Tensor,
        loss: Callable[..., Tensor],
        scale: float,
        wrt_input: bool,
    ) -> tuple[Tensor, Tensor | None]:
        self.model.train()
        inputs = tuple(t.detach().requires_grad_(wrt_input) for t in inputs)
        value = loss(*[self._forward(t) for t in inputs], y).mean()
        (value * scale if scale != 1 else value).backward()
        return value.detach(), inputs[0].grad

    def _costate(self, x: Tensor, y: Tensor, first: bool, scale: float) -> tuple[Tensor, Tensor]:
        self.model.train()
        with self.first.cut() as cut:
            loss = self.loss(self._forward(x.detach()), y).mean()
        (loss * scale if scale != 1 else loss).backward()
        p = cut.behind.grad
        assert p is not None
        if first and cut.before.requires_grad:
            cut.before.backward(p)
        return loss.detach(), p

    def _first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        self.model.train()
        x = x.detach().requires_grad_()
        with self._autocast():
            z = self.first(x)
        (g,) = torch.autograd.grad((z * p).sum(), x)
        return g

    def _first_backward(self, x: Tensor, p: Tensor) -> None:
        self.model.train()
        with self._autocast():
            z = self.first(x.detach())
        product = (z * p).sum()
        if product.requires_grad:  # a first layer may have no weights
            product.backward()
