"""A network that methods may train on without training it: their weight gradients are caught, and
everything else stays as it was."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.distributed.sync_batchnorm import revert_sync_batchnorm
from amata.engine.plain import Mode, PlainNet, Precision
from amata.losses import Loss, ce
from amata.threat import Region


@dataclass
class Path:
    """Ascent steps of one size from one start, as far as they have been walked."""

    start: Tensor
    y: Tensor
    steps: int
    end: Tensor


class ProbeNet(PlainNet):
    """The engine's verbs on a copy of a model, with an `apply` that keeps the gradient instead of
    stepping along it.

    After a method's `step`, `gradient` is the weight gradient of the method's last update, one flat
    vector, and `x_adv` the images of its last pass. Where a method replays a batch (free), that is
    the last replay, at the perturbation reached by then; where it adds up passes before one update
    (yopo), it is their mean.

    With `shares`, ascents that differ in their number of steps alone are walked as one path, each
    going on where the one before it ended: the same images in less time, but what one control takes
    by itself is no longer seen.
    """

    gradient: Tensor
    x_adv: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = ce,
        attack_loss: Loss = ce,
        attack_mode: Mode = "eval",
        first_layer: str | None = None,
        precision: Precision = "fp32",
        shares: bool = False,
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
            attack_mode=attack_mode,
            first_layer=first_layer,
            precision=precision,
        )
        self.buffers = [(b, b.detach().clone()) for b in copied.buffers()]
        self.passes = 0
        # In train mode an attack leaves traces in BatchNorm's statistics, which a shared one would
        # not.
        self.shares = shares and attack_mode == "eval"
        self.paths: dict[tuple[float, Loss], list[Path]] = {}

    def rewind(self) -> None:
        """Undo what passes have done to BatchNorm's statistics, and forget the last gradient."""
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
        self.optimizer.zero_grad()
        self.passes = 0

    def _ascent(
        self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, loss: Loss
    ) -> Tensor:
        if not self.shares:
            return super()._ascent(region, x, y, steps, step_size, loss)
        paths = self.paths.setdefault((step_size, loss), [])
        path = next((p for p in paths if torch.equal(p.start, x) and torch.equal(p.y, y)), None)
        if path is None:
            paths.append(path := Path(x, y, 0, x))
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

    def costate(self, x: Tensor, y: Tensor, *, first: bool) -> Tensor:
        self.x_adv = x.detach()
        self.passes += 1
        return super().costate(x, y, first=first)

    def apply(self) -> None:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in self.model.parameters()
        ]
        self.gradient = torch.cat(parts) / max(self.passes, 1)
        self.optimizer.zero_grad()
        self.passes = 0
