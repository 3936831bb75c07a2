"""Run a method's step without training the model, to measure the weight gradient of its update."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.distributed.sync_batchnorm import revert_sync_batchnorm
from amata.engine.plain import Mode, PlainNet, Precision
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
    """The engine's verbs on a copy of a model, with an `apply` that stores the gradient instead of
    updating weights.

    After a method's `step`, `gradient` is the weight gradient of its last update, as one flat
    vector, and `x_adv` holds the images of its last pass. A method that replays a batch (free)
    leaves the gradient of the last replay. One that sums several passes before an update (yopo)
    leaves their mean.

    With `share_paths`, ascents that differ only in their number of steps share one path: each
    continues where the one before it ended. The images are the same and take less time, but the
    time of a single control is no longer measured.
    """

    gradient: Tensor
    x_adv: Tensor

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
    ) -> None:
        # Each process probes on its own, so nothing may wait for the others.
        copied = revert_sync_batchnorm(copy.deepcopy(model)).requires_grad_(True)
        for p in copied.parameters():
            p.grad = None
        idle = torch.optim.SGD(copied.parameters(), lr=0.0)
        super().__init__(
            copied,
            idle,
            loss=loss,
            attack_loss=attack_loss,
            class_weights=class_weights,
            attack_mode=attack_mode,
            first_layer=first_layer,
            precision=precision,
        )
        self.buffers = [(b, b.detach().clone()) for b in copied.buffers()]
        self.passes = 0.0
        # In train mode every attack step changes BatchNorm's statistics; a shared step would do so
        # once only.
        self.share_paths = share_paths and attack_mode == "eval"
        self.paths: dict[tuple[float, Loss], list[AscentPath]] = {}

    def rewind(self) -> None:
        """Restore BatchNorm's statistics and drop the accumulated gradient."""
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
        self.optimizer.zero_grad()
        self.passes = 0.0

    def _ascent(
        self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, loss: Loss
    ) -> Tensor:
        if not self.share_paths:
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
        self, x: Tensor | tuple[Tensor, ...], y: Tensor, **options: object
    ) -> Tensor | None:
        self.x_adv = (x[-1] if isinstance(x, tuple) else x).detach()
        return super().backward(x, y, **options)  # type: ignore[arg-type]

    def costate(self, x: Tensor, y: Tensor, *, first: bool, scale: float = 1.0) -> Tensor:
        self.x_adv = x.detach()
        self.passes += scale
        return super().costate(x, y, first=first, scale=scale)

    def apply(self) -> None:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in self.model.parameters()
        ]
        self._in_update = False
        self.gradient = torch.cat(parts) / max(self.passes, 1)
        self.optimizer.zero_grad()
        self.passes = 0.0
