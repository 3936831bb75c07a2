"""Run a method's step on a copy of a model, to measure how far one batch moves the weights."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.distributed.sync_batchnorm import revert_sync_batchnorm
from amata.engine.passes import Pass
from amata.engine.plain import Mode, PlainNet, Precision
from amata.errors import InputError
from amata.losses import Loss, ce
from amata.threat import Region


@dataclass
class AscentPath:
    """Ascent steps of one size from one start: how many were taken, and where they ended."""

    start: Tensor
    y: Tensor
    steps: int
    end: Tensor


class ProbeNet(PlainNet):
    """The engine's verbs on a copy of a model, whose weights are updated by plain SGD with the
    learning rate `lr`.

    After a method's `step`, `displacement` is how far the batch moved the weights down, divided by
    `lr`, as one flat vector: the sum of the gradients of all its updates. It holds the trainable
    weights only. `images` has the adversarial images of every pass, `passes` the passes. With `lr`
    = 0 the weights stay where they are: the limit of small learning rates. `lr` only matters to
    methods that update several times per batch (free).

    With `share_paths`, ascents that differ only in their number of steps share one path: each
    continues where the one before it ended. The images are the same and take less time, but the
    time of a single control is no longer measured.
    """

    displacement: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = ce,
        attack_loss: Loss = ce,
        class_weights: Tensor | None = None,
        attack_mode: Mode = "eval",
        first_layer: str | None = None,
        precision: Precision = "fp32",
        share_paths: bool = False,
        lr: float = 0.0,
    ) -> None:
        # Each process probes on its own, so nothing may wait for the others.
        copied = revert_sync_batchnorm(copy.deepcopy(model))
        for p in copied.parameters():
            p.grad = None
        self.weights = [p for p in copied.parameters() if p.requires_grad]
        if not self.weights:
            raise InputError("no parameter of the model requires a gradient; unfreeze some")
        super().__init__(
            copied,
            torch.optim.SGD(self.weights, lr=lr),
            loss=loss,
            attack_loss=attack_loss,
            class_weights=class_weights,
            attack_mode=attack_mode,
            first_layer=first_layer,
            precision=precision,
        )
        self.lr = lr
        tensors = [*copied.buffers(), *(self.weights if lr else ())]
        self.saved = [(t, t.detach().clone()) for t in tensors]
        self.images: list[Tensor] = []
        self.passes: list[Pass] = []
        # In train mode every attack step changes BatchNorm's statistics; a shared step would do so
        # once only.
        self.share_paths = share_paths and attack_mode == "eval"
        self.paths: dict[tuple[float, Loss], list[AscentPath]] = {}

    def rewind(self) -> None:
        """Restore weights and BatchNorm's statistics, and drop the accumulated gradient."""
        with torch.no_grad():
            for tensor, value in self.saved:
                tensor.copy_(value)
        self.optimizer.zero_grad()
        self.updates = 0
        self.images, self.passes = [], []

    @property
    def x_adv(self) -> Tensor:
        """The images of the last pass."""
        return self.images[-1]

    def _ascent(
        self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, loss: Loss
    ) -> Tensor:
        if not self.share_paths or (self.updates and self.lr):  # paths are of the saved weights
            return super()._ascent(region, x, y, steps, step_size, loss)
        paths = self.paths.setdefault((step_size, loss), [])
        path = next((p for p in paths if torch.equal(p.start, x) and torch.equal(p.y, y)), None)
        if path is None:
            paths.append(path := AscentPath(x, y, 0, x))
        if path.steps > steps:
            path.steps, path.end = 0, x
        path.end = super()._ascent(region, path.end, y, steps - path.steps, step_size, loss)
        path.steps = steps
        return path.end

    def backward(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        loss: Callable[..., Tensor] | None = None,
        given: tuple[Tensor, ...] = (),
        scale: float = 1.0,
        wrt_input: bool = False,
    ) -> Tensor | None:
        inputs = x if isinstance(x, tuple) else (x,)
        self._record(Pass(inputs, y, loss or self.loss, given, scale))
        return super().backward(x, y, loss=loss, given=given, scale=scale, wrt_input=wrt_input)

    def costate(self, x: Tensor, y: Tensor, *, first: bool, scale: float = 1.0) -> Tensor:
        self._record(Pass((x,), y, self.loss, (), scale))
        return super().costate(x, y, first=first, scale=scale)

    def _record(self, done: Pass) -> None:
        inputs = tuple(t.detach() for t in done.inputs)
        self.images.append(inputs[-1])
        self.passes.append(done._replace(inputs=inputs))

    def hessian_product(self, passes: Sequence[Pass], v: Tensor, seed: int) -> Tensor:
        """H v at the saved weights, where H is the Hessian of the losses of these passes, summed.
        Their images are fixed. `seed` is that of dropout, so that H is the same in every call."""
        self.rewind()
        self.model.train()
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            torch.manual_seed(seed)
            total = torch.zeros_like(v)
            for p in passes:
                losses = p.loss(*[self._forward(t) for t in p.inputs], p.y, *p.given)
                total = total + self._product(p.scale * self._mean(losses, p.y), v)
        return total

    def _product(self, value: Tensor, v: Tensor) -> Tensor:
        grads = torch.autograd.grad(value, self.weights, create_graph=True, materialize_grads=True)
        along = torch.cat([g.flatten() for g in grads]) @ v
        if not along.requires_grad:  # a loss that is linear in the weights
            return torch.zeros_like(v)
        found = torch.autograd.grad(along, self.weights, materialize_grads=True)
        return torch.cat([h.flatten() for h in found])

    def apply(self) -> None:
        self._repeat_perturbed()
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.weights]
        )
        self.displacement = self.displacement + gradient if self.updates else gradient
        self._in_update = False
        if self.lr:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
