"""The engine's verbs in eager PyTorch: the reference that tests compare the fast engine with.

Each verb counts its cost and leaves the work to a method of the same name with an underscore. A
faster engine overrides only those.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from amata.distributed.buckets import GradientBuckets
from amata.distributed.process_group import Ranks
from amata.engine.ema import EMA
from amata.engine.passes import Pass, forward, mean_loss, per_image
from amata.engine.split import FirstLayer
from amata.engine.weight_perturbation import WeightPerturbation
from amata.errors import InputError
from amata.losses import Loss, ce
from amata.seeds import Noise
from amata.threat import Ball, Region

Mode = Literal["eval", "train"]
Precision = Literal["fp32", "bf16"]


class PlainNet:
    """A network in training, with the verbs that methods are written in (`amata.methods.Net`).

    `attack_mode` is the mode of the modules during attacks. "eval": BatchNorm uses its running
    statistics and does not update them, dropout is off. "train": BatchNorm uses the statistics of
    the attacked batch and updates the running ones, dropout is on. `backward` and the verbs of the
    split network always run in train mode. With "bf16" the network runs under autocast; weights,
    gradients, losses and the optimiser stay in fp32. `class_weights` multiply the losses of the
    update, image by image; attacks do not need them, because they follow each image's own gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss: Loss = ce,
        attack_loss: Loss = ce,
        class_weights: Tensor | None = None,
        attack_mode: Mode = "eval",
        ema: EMA | None = None,
        first_layer: str | None = None,
        precision: Precision = "fp32",
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.ranks = ranks or Ranks()
        self.syncs_in_forward = self.ranks.size > 1 and any(
            isinstance(m, nn.SyncBatchNorm) for m in model.modules()
        )
        """Whether processes communicate within a forward pass."""
        self.precision = precision
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.optimizer = optimizer
        self.loss = loss
        self.attack_loss = attack_loss
        self.class_weights = class_weights
        self.attack_mode = attack_mode
        self.ema = ema
        self.first_layer = FirstLayer(model, first_layer)
        self._evals = 0
        self.first_layer_evals = 0
        """Gradient evaluations of the first layer alone, in images. Only the engine writes it."""
        self.last_loss: Tensor | None = None
        """The batch-mean loss that the update minimises, on its device: summed over the `backward`
        passes of one update, each times its `scale`. Of the passes of a split network it is the
        last one's."""
        self.compile_seconds = 0.0
        """Time spent on compiling and recording."""
        self.part_weight = 1.0
        """With gradient accumulation, the fraction of the batch in the current part."""
        self.accumulating = False
        """With gradient accumulation, whether more parts of the batch follow: `apply` then does
        nothing."""
        self.image_size: int | None = None
        """The side of the images, where the schedule reduces them: an engine may keep work for
        every size."""
        self.updates = 0
        """Calls of `apply` that updated the weights."""
        self.note: Callable[[str], None] = warnings.warn
        """Where the engine says, once, what it cannot do."""
        self._samples = 0
        self._in_update = False
        self._gamma = 0.0
        self._passes: list[Pass] = []
        """Of the update, where its weights are to be perturbed."""

    @property
    def grad_evals(self) -> int:
        """Full-network gradient evaluations so far, in images. Reading it may wait for the
        device."""
        return self._evals

    def describe(self) -> str:
        """The engine in a few words: precision, compilation, graphs."""
        return f"plain engine, {self.precision}"

    def weights_changed(self) -> None:
        """Call it after changing weights from outside, as when loading a checkpoint."""

    def warm_up(self, method: Any, batch: Any, u: Any) -> None:
        """Compile and record what the method's steps need under the control u, for batches like
        this one. Nothing else changes: neither weights, optimiser, counters nor random states."""

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Steps in the with block change nothing: weights, optimiser, counters and random states
        are restored after it."""
        from amata.engine.trial import on_trial

        with on_trial(self, keep_tensors=False):
            yield

    def logits(self, x: Tensor) -> Tensor:
        return self._logits(x)

    def input_grad(self, x: Tensor, y: Tensor, *, loss: Loss | None = None) -> Tensor:
        self._evals += len(x)
        return self._input_grad(x, y, loss or self.attack_loss)[0]

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
        if steps < 0 or not hasattr(region, "project"):
            raise InputError(
                "net.ascent() takes a region, such as self.ball.around(batch.x), and at least 0 "
                f"steps; not {type(region).__name__} and {steps}"
            )
        self._evals += steps * len(x)
        return self._ascent(region, x, y, steps, step_size, loss or self.attack_loss)

    def ascent_while(
        self,
        ball: Ball,
        x: Tensor,
        start: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        *,
        goes_on: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...] = (),
        noise: Noise | None = None,
    ) -> Tensor:
        x_adv = now = start
        region, active = ball.around(x), torch.arange(len(x), device=x.device)
        for _ in range(steps):
            self._evals += len(now)
            g, z = self._input_grad(now, y[active], self.attack_loss)
            goes, *state_now = goes_on(ball, now, y[active], g, z, *state)
            stays, state = goes.nonzero().squeeze(1), tuple(state_now)
            if len(stays) < len(active):  # those that stop leave the batch
                x_adv = x_adv.index_copy(0, active, now)
                active, now, g, *state_now = (t[stays] for t in (active, now, g, *state))
                region, state = ball.around(x[active]), tuple(state_now)
            if len(active) == 0:
                break
            moved = region.ascend(now, g, step_size)
            if noise is not None:
                moved = moved + noise.draw(x, active)
            now = region.project(moved)
        return x_adv.index_copy(0, active, now)

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
        if self.class_weights is not None and (y.dim() != 1 or y.is_floating_point()):
            raise InputError(
                "optim.class_weights need one label per image, and this method passes other "
                "targets to net.backward; set optim.class_weights=none"
            )
        self._evals += sum(len(t) for t in inputs)
        self._samples += len(y)
        # Copied: the next replay of a graph overwrites it.
        earlier = None if self.last_loss is None or not self._in_update else self.last_loss.clone()
        now = Pass(inputs, y, loss or self.loss, given, scale * self._loss_weight(y))
        with self._keeping_statistics() if self._gamma else nullcontext(), self._averaging():
            value, g = self._backward(*now[:5], wrt_input)
        minimised = value * scale if scale != 1 else value
        self.last_loss = minimised if earlier is None else minimised + earlier
        self._in_update = True
        if self._gamma:  # copied: the attack on the next part of the batch may overwrite the images
            copied = (tuple(t.detach().clone() for t in tensors) for tensors in (inputs, given))
            kept = Pass(next(copied), y.clone(), now.loss, next(copied), now.scale)
            kept = kept._replace(part_weight=self.part_weight, own_scale=scale, gamma=self._gamma)
            self._passes.append(kept)
            self.last_loss = torch.zeros_like(value)  # nothing is minimised yet
        return g

    @contextmanager
    def perturbed(self, gamma: float) -> Iterator[None]:
        self._gamma = gamma
        try:
            yield
        finally:
            self._gamma = 0.0
            if not self.accumulating:  # also after an error
                self._passes.clear()

    @contextmanager
    def _keeping_statistics(self) -> Iterator[None]:
        """Undo what a pass does to BatchNorm's running statistics."""
        buffers: dict[torch.dtype, list[Tensor]] = {}
        for b in self.model.buffers():
            buffers.setdefault(b.dtype, []).append(b)
        kept = {kind: [torch.empty_like(b) for b in same] for kind, same in buffers.items()}
        for kind, same in buffers.items():
            torch._foreach_copy_(kept[kind], same)
        try:
            yield
        finally:
            for kind, same in buffers.items():
                torch._foreach_copy_(same, kept[kind])

    def _repeat_perturbed(self) -> None:
        """Replace the gradients of the update by those at adversarially perturbed weights. The
        gradients so far, averaged over processes and parts of the batch, are the direction."""
        if not self._passes:
            return
        if self.ranks.size > 1:
            self.buckets.average(self._share)
        restore = self._perturb(self._passes[0].gamma)
        total: Tensor | None = None
        try:
            for one in self._passes:
                self._evals += sum(len(t) for t in one.inputs)
                with self._averaging():
                    value, _ = self._backward(*one[:5], False)
                # The trainer weights the loss of the last part by that part's size.
                value = value * (one.own_scale * one.part_weight / self.part_weight)
                total = value if total is None else total + value
        finally:
            restore()
            self._passes.clear()
        self.last_loss = total

    def _perturb(self, gamma: float) -> Callable[[], None]:
        """Perturb the weights and set gradients to zero; returns what restores the weights."""
        perturbation = WeightPerturbation(self.model)
        perturbation.move(gamma)
        return perturbation.restore

    def apply(self) -> None:
        self._in_update = False
        if self.accumulating:
            return
        self._repeat_perturbed()
        if self.ranks.size > 1:
            self._all_reduce()
        self._step()
        self.updates += 1
        self._samples = 0

    def _all_reduce(self) -> None:
        """Average weight gradients and BatchNorm's running statistics over the images of all
        processes."""
        self.buckets.average(self._share)
        if statistics := [b for b in self.model.buffers() if b.is_floating_point()]:
            self.ranks.average(statistics, self._share)

    @cached_property
    def buckets(self) -> GradientBuckets:
        """What averages gradients over processes."""
        return GradientBuckets(self.model.parameters())

    @property
    def _share(self) -> float:
        """The weight of this process's gradients in their mean over all processes."""
        return 1 if self.syncs_in_forward else self._samples

    @property
    def _overlaps(self) -> bool:
        """Whether gradients can be sent while a backward pass is computing others."""
        return True

    def _averaging(self) -> AbstractContextManager[None]:
        """Send gradients during the update's last backward pass."""
        if self.ranks.size == 1 or self.accumulating or not self._overlaps:
            return nullcontext()
        return self.buckets.overlap(self._share)

    def _loss_weight(self, y: Tensor) -> float:
        """The factor of the loss in the update: this part's fraction of its batch.

        SyncBatchNorm sends gradients between processes during backward. So each process must weigh
        its loss by its number of images before that, not when gradients are averaged.
        """
        if not self.syncs_in_forward:
            return self.part_weight
        return self.part_weight * len(y) * self.ranks.size / self.ranks.sum([len(y)])[0]

    def _step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()

    def costate(self, x: Tensor, y: Tensor, *, first: bool, scale: float = 1.0) -> Tensor:
        if self._gamma:
            raise InputError(
                "awp repeats net.backward at perturbed weights, and this method splits the network "
                "instead (net.costate); drop awp, or choose another method"
            )
        self._evals += len(x)
        self._samples += len(y)
        self.last_loss, p = self._costate(x, y, first, scale * self._loss_weight(y))
        return p

    def first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        self.first_layer_evals += len(x)
        return self._first_grad(x, p)

    def first_ascent(
        self, region: Region, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        self.first_layer_evals += steps * len(x)
        return self._first_ascent(region, x, p, steps, step_size)

    def first_backward(self, x: Tensor, p: Tensor) -> None:
        self.first_layer_evals += len(x)
        self._first_backward(x, p)

    # The work itself

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
        )

    def _forward(self, x: Tensor) -> Tensor:
        return forward(self.model, x, self.precision == "bf16")

    def _mean(self, losses: Tensor, y: Tensor) -> Tensor:
        return mean_loss(losses, y, self.class_weights)

    def _logits(self, x: Tensor) -> Tensor:
        self.model.train(self.attack_mode == "train")
        with torch.no_grad():
            return self._forward(x)

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self.model.train(self.attack_mode == "train")
        x = x.detach().requires_grad_()
        z = self._forward(x)
        # The sum, not the mean: each sample's own gradient. Autograd computes it for x alone, so
        # there are no weight gradients.
        (g,) = torch.autograd.grad(per_image(loss(z, y), len(x)).sum(), x)
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
        given: tuple[Tensor, ...],
        scale: float,
        wrt_input: bool,
    ) -> tuple[Tensor, Tensor | None]:
        self.model.train()
        inputs = tuple(t.detach().requires_grad_(wrt_input) for t in inputs)
        value = self._mean(loss(*[self._forward(t) for t in inputs], y, *given), y)
        (value * scale if scale != 1 else value).backward()
        return value.detach(), inputs[0].grad

    def _costate(
        self, x: Tensor, y: Tensor, first: bool, scale: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        self.model.train()
        with self.first_layer.cut() as cut:
            loss = self._mean(self.loss(self._forward(x.detach()), y), y)
        (loss * scale).backward()
        p = cut.after.grad
        assert p is not None
        if first and cut.before.requires_grad:
            cut.before.backward(p)
        return loss.detach(), p

    def _first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        self.model.train()
        x = x.detach().requires_grad_()
        with self._autocast():
            z = self.first_layer(x)
        (g,) = torch.autograd.grad(z, x, p.to(z.dtype))  # of <p, z>, without computing it
        return g

    def _first_ascent(
        self, region: Region, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        for _ in range(steps):
            x = region.project(region.ascend(x, self._first_grad(x, p), step_size))
        return x

    def _first_backward(self, x: Tensor, p: Tensor) -> None:
        self.model.train()
        with self._autocast():
            z = self.first_layer(x.detach())
        if z.requires_grad:  # a first layer may have no weights
            z.backward(p.to(z.dtype))
