"""The engine's verbs on a GPU, fast: compiled, recorded as CUDA graphs and replayed. docs/engine.md
says what each part gains.

- Attacks run on a frozen copy of the network in bf16 with folded BatchNorms, refreshed once after
  every update (`AttackCopy`).
- Ascent steps are graphs. The step size is a device scalar and the images are updated in place, so
  K and alpha may change between epochs without compiling or recording again (`AscentGraph`).
- The update runs in bf16 under autocast, with weights, gradients and optimiser state in fp32.
  Gradients accumulate in static tensors.
- `apply` is one graph: optimiser, EMA, gradients to zero, attack copy. The learning rate and the
  EMA's decay are device scalars (`ApplyGraph`).
- The host never waits for the device.

Images of every size that the schedule reduces them to have graphs of their own (`image_size`). Rare
shapes, such as a smaller last batch, run eagerly in the same precision. A model that cannot be
compiled is recorded uncompiled, and one that cannot be recorded runs eagerly (`_attempt`).
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amata import ahead
from amata.engine.apply import ApplyGraph, is_graphable
from amata.engine.ascent import AscentGraph, ascent_step
from amata.engine.attack_copy import AttackCopy, copy_and_fold
from amata.engine.batchnorm import compile_with_batchnorm
from amata.engine.compiler import mark_static
from amata.engine.cudnn import no_cudnn_benchmark
from amata.engine.early_stop import EarlyStop, bucket_size, stop_or_step
from amata.engine.graphs import Graph
from amata.engine.passes import attack_objective, forward, update_objective
from amata.engine.plain import PlainNet, Precision
from amata.engine.recorded import RecordedNet
from amata.engine.trial import on_trial
from amata.engine.weight_perturbation import WeightPerturbation
from amata.errors import AmataError
from amata.losses import Loss
from amata.seeds import Noise
from amata.threat import Ball, L2Region, LinfRegion, Region

MAX_VARIANTS = 16
"""How many different (loss, scale) pairs one verb may get: each is compiled and recorded."""


class FastNet(RecordedNet):
    """The verbs, compiled and recorded as CUDA graphs on a GPU; eager on a CPU.

    There is one graph for every verb, loss function and `scale`. A method must therefore pass the
    same function object in every step, and few different scales. More than `MAX_VARIANTS` of them
    raise an error, on a CPU too.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Precision = "bf16",
        compiled: bool | None = None,
        channels_last: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, precision=precision, compiled=compiled, **options)
        self.layout = (
            torch.channels_last
            if (_suits_channels_last(model) if channels_last is None else channels_last)
            else None
        )
        if self.graphed and self.layout:
            model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.attack_copy = self._copy_for_attacks()
        self.attack_copy_is_stale = False
        self.attack_copy_is_used = False
        self.has_stepped = False
        self.is_on_trial = False
        if self.graphed:
            if self.layout and self.ema is not None:
                self.ema.model.to(memory_format=self.layout)  # type: ignore[call-overload]
            self.gradients = {p: torch.zeros_like(p) for p in model.parameters() if p.requires_grad}
            if self.ranks.size > 1:
                self.gradients = self.buckets.views()
        self.apply_graphs: dict[bool, ApplyGraph] = {}
        """By whether the attack copy is refreshed."""
        self.perturbations: dict[tuple[float, int], tuple[Graph, Graph]] = {}
        """What perturbs weights by gamma, and what restores them."""
        self.early_stops: dict[Hashable, tuple[Hashable, EarlyStop]] = {}
        self.device_evals = torch.zeros((), device=self.device, dtype=torch.long)
        """Gradient evaluations of samples whose number only the device knows."""
        self.largest_batches: dict[Hashable, int] = {}
        self.variants: dict[str, set[tuple[Callable[..., Any], float]]] = {}
        self.alpha = torch.zeros((), device=self.device)
        self.step_size: float | None = None
        self.costate_scale = torch.ones((), device=self.device)
        self.scale = 1.0
        """What `costate_scale` holds: a device scalar, so that YOPO's m may change between epochs
        without recording again."""

    def describe(self) -> str:
        parts = [f"fast engine, {self.precision}"]
        parts += ["torch.compile"] if self.compiled else []
        parts += [f"not compiled ({self.not_compiled})"] if self.not_compiled else []
        parts += (
            ["CUDA graphs", *(["channels_last"] if self.layout else [])]
            if self.graphed
            else ["eager (no CUDA device)" if self.device.type != "cuda" else "eager"]
        )
        parts += ["updates eager because of train.sync_bn"] if self.syncs_in_forward else []
        parts += (
            [f"{len(self.attack_copy.folds)} BatchNorms folded in attacks"]
            if self.attack_copy.folds
            else []
        )
        return ", ".join(parts)

    @property
    def grad_evals(self) -> int:
        return self._evals + (int(self.device_evals) if self.early_stops else 0)

    @property
    def _overlaps(self) -> bool:
        return not self.graphed or self.syncs_in_forward

    def _copy_for_attacks(self) -> AttackCopy:
        bf16 = self.precision == "bf16"
        return AttackCopy(
            self.model,
            train_mode=self.attack_mode == "train",
            dtype=torch.bfloat16 if bf16 else next(self.model.parameters()).dtype,
            # Uncompiled, windows and padding would cost more than they save.
            tensor_core_layers=self.graphed and self.compiled and bf16,
        )

    def _step(self) -> None:
        self.attack_copy_is_stale = True
        if not (self.graphed and self.has_stepped and is_graphable(self.optimizer)):
            # The first step creates the optimiser's state, so it is not recorded. Neither is the
            # first after `weights_changed`, which is called for newly reached weights too.
            self.has_stepped = True
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=not self.graphed)
            if self.ema is not None:
                self.ema.update()
            return
        used = self.attack_copy_is_used
        if used not in self.apply_graphs:
            with self._compiling():
                refresh = self._refresher() if used else None
                self.apply_graphs[used] = ApplyGraph(self.optimizer, self.ema, refresh, self.pool)
        self.apply_graphs[used]()
        self.attack_copy_is_stale = not used

    def weights_changed(self) -> None:
        self.attack_copy_is_stale = True
        # the optimiser's state may be in other tensors now
        self.apply_graphs.clear()
        self.has_stepped = False

    def warm_up(self, method: Any, batch: Any, u: Any) -> None:
        if not (self.graphed or self.compiled):
            return
        self._synchronize()
        started, compiled_before = time.perf_counter(), self.compile_seconds
        with self.trial():
            # The second step starts from an update, and from the state that the first created.
            for _ in range(2):
                rng = torch.Generator(self.device).manual_seed(0)
                method.step(self, batch, u, rng, {})
        self._synchronize()
        self.compile_seconds = compiled_before + time.perf_counter() - started

    @contextmanager
    def trial(self) -> Iterator[None]:
        variants = {verb: set(seen) for verb, seen in self.variants.items()}
        evals = self.device_evals.clone()
        self.attack_copy_is_stale = True
        self.is_on_trial = True
        try:
            with on_trial(self, keep_tensors=self.graphed):
                yield
        finally:
            self.device_evals.copy_(evals)
            self.variants = variants
            self.is_on_trial = False
            self.attack_copy_is_stale = True

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
        # Checked here, where `scale` is still what the method passed: without the part's weight.
        self._check_variants("backward", loss or self.loss, scale)
        return super().backward(x, y, loss=loss, given=given, scale=scale, wrt_input=wrt_input)

    def _check_variants(self, verb: str, loss: Callable[..., Any], scale: float = 1.0) -> None:
        """Refuse a method that would have a new graph recorded in every step."""
        seen = self.variants.setdefault(verb, set())
        seen.add((loss, scale))
        if len(seen) <= MAX_VARIANTS:
            return
        if len({loss for loss, _ in seen}) > len({scale for _, scale in seen}):
            raise AmataError(
                f"the method passes a new loss function to net.{verb} in every step, and the fast "
                "engine compiles each one; define it once, as a module-level function or a method "
                "of the frozen dataclass, or set train.engine=plain"
            )
        raise AmataError(
            f"the method passes a new scale to net.{verb} in every step, and the fast engine "
            "compiles each one; pass a few fixed values, or set train.engine=plain"
        )

    # The work itself. Each piece has two forms: compiled, to be recorded, and eager, for rare
    # shapes.

    def _logits(self, x: Tensor) -> Tensor:
        self._refresh_attack_copy()

        def work(x: Tensor) -> Tensor:
            with torch.no_grad():
                return forward(self.attack_copy.model, x, self.precision == "bf16")

        # Copied, here and below: a method may hold results of two calls, or one over an update.
        return self._run("logits", lambda _: work, (x,), self._attack_state).clone()

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self._check_variants("input_grad", loss)
        self._refresh_attack_copy()
        name, n = ("input_grad", loss), len(x)
        if not self.graphed or self.attack_mode == "train":
            g, z = self._run(
                name,
                lambda recorded: self._make_input_grad(loss, recorded),
                (x, y),
                self._attack_state,
            )
            return g.clone(), z.clone()
        key = self._sized(name)
        full = self.largest_batches[key] = max(n, self.largest_batches.get(key, 0))
        size = bucket_size(n, full)
        if (key, size) not in self.graphs:
            rows = [torch.cat([t, t[-1:].expand(size - n, *t.shape[1:])]) for t in (x, y)]

            def record() -> None:
                if self.graphed:
                    self.graphs[key, size] = Graph(
                        self._make_input_grad(loss, True), rows, pool=self.pool
                    )

            self._attempt(record)
            if not self.graphed:
                return self._make_input_grad(loss, False)(x, y)
        g, z = self.graphs[key, size](x, y)
        return g[:n].clone(), z[:n].clone()

    def _make_input_grad(
        self, loss: Loss, usual: bool
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        objective = self._best(attack_objective) if usual else attack_objective
        model, bf16 = self.attack_copy.model, self.precision == "bf16"

        def work(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            total, z = objective(model, loss, bf16, x, y)
            (g,) = torch.autograd.grad(total, x)
            return g, z.detach()

        return work

    def _ascent(
        self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, loss: Loss
    ) -> Tensor:
        if steps == 0:
            return x
        self._check_variants("ascent", loss)
        self._refresh_attack_copy()
        key = ("ascent", loss, type(region), _made_for(region))
        make = partial(self._make_input_grad, loss)
        return self._climb(key, make, region, x, y, steps, step_size, self._attack_state)

    def _climb(
        self,
        key: Hashable,
        make_grad: Callable[[bool], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]],
        region: Region,
        x: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        mutated: Callable[[], list[Tensor]],
    ) -> Tensor:
        """Ascent steps along the gradients of a function made by `make_grad`; its argument says
        whether it is compiled and recorded."""
        key = self._sized(key)

        def eager(usual: bool) -> Tensor:
            input_grad = make_grad(usual)
            step = self._best(ascent_step) if usual else ascent_step
            alpha = self.alpha if usual and self.compiled else step_size
            moved = x
            for _ in range(steps):
                moved = step(region, moved, input_grad(moved, y)[0], alpha)
            return moved

        if not self._is_usual(key, x):
            with no_cudnn_benchmark():
                return eager(False)
        if not (self.graphed or self.compiled):
            return eager(False)
        self._set_step_size(step_size)

        def run() -> Tensor:
            if not self.graphed:
                return eager(True)
            if key not in self.ascent_graphs:
                grad, step = make_grad(True), self._best(ascent_step)
                self.ascent_graphs[key] = AscentGraph(
                    grad, step, region, x, y, self.alpha, mutated(), self.pool
                )
            return self.ascent_graphs[key](region, x, y, steps)

        return run() if key in self.ascent_graphs else self._attempt(run, mutated)

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
        self._check_variants("ascent_while", goes_on)
        how: Any = {"goes_on": goes_on, "state": state, "noise": noise}
        plain = partial(super().ascent_while, ball, x, start, y, steps, step_size, **how)
        # In train mode BatchNorm normalises over exactly the samples that are left.
        if not self.graphed or self.attack_mode == "train" or steps <= 0:
            return plain()
        self._refresh_attack_copy()
        self._set_step_size(step_size)
        std = None if noise is None else noise.std
        made_for = (ball, std, x.shape[1:], x.dtype)
        known = self.early_stops.get(goes_on)
        if known is not None and known[0] == made_for and len(x) <= len(known[1].out):
            return known[1](x, start, y, steps, state, noise)

        def first() -> Tensor:
            if not self.graphed:
                return plain()
            attack = EarlyStop(
                self._make_input_grad(self.attack_loss, True),
                partial(self._best(stop_or_step), ball, goes_on, std, self.alpha),
                self.device_evals,
                x,
                self._record,
            )
            self.early_stops[goes_on] = made_for, attack
            return attack(x, start, y, steps, state, noise)

        return self._attempt(first)

    def _set_step_size(self, step_size: float) -> None:
        """Write the step size to the device, if it changed."""
        if self.step_size != step_size:
            self.alpha.fill_(step_size)
            self.step_size = step_size

    def _backward(
        self,
        inputs: tuple[Tensor, ...],
        y: Tensor,
        loss: Callable[..., Tensor],
        given: tuple[Tensor, ...],
        scale: float,
        wrt_input: bool,
    ) -> tuple[Tensor, Tensor | None]:
        def make(usual: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
            self.model.train()
            objective = (
                self._best(update_objective, compile_with_batchnorm) if usual else update_objective
            )
            recorded = usual and self.graphed

            def work(*tensors: Tensor) -> tuple[Tensor, Tensor | None]:
                n = len(inputs)
                xs = tuple(t.detach().requires_grad_(wrt_input) for t in tensors[:n])
                y, *given = tensors[n:]
                bf16 = self.precision == "bf16"
                total = objective(self.model, loss, self.class_weights, bf16, xs, y, tuple(given))
                scaled = total * scale if scale != 1 else total
                if not recorded:
                    scaled.backward()
                    return total.detach(), xs[0].grad
                found = self._add_gradients(scaled, xs[:1] if wrt_input else [])
                return total.detach(), found[0] if wrt_input else None

            return work

        # every part of a batch updates BatchNorm's statistics
        self.attack_copy_is_stale |= self.accumulating
        key = ("backward", loss, len(inputs), scale, wrt_input)
        total, g = self._train(key, make, (*inputs, y, *given))
        return total.clone(), None if g is None else g.clone()

    def _perturb(self, gamma: float) -> Callable[[], None]:
        if not self.graphed:
            return super()._perturb(gamma)
        # `reached` only grows, and with it what is perturbed
        known = (gamma, len(self.reached))
        if known not in self.perturbations:
            moved = WeightPerturbation(self.model)
            changed = [*moved.weights, *moved.gradients]
            self.perturbations[known] = (
                self._record(lambda: moved.move(gamma), changed),
                self._record(moved.restore, moved.weights),
            )
        move, restore = self.perturbations[known]
        move.replay()
        return restore.replay

    def _costate(
        self, x: Tensor, y: Tensor, first: bool, scale: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.scale != scale:
            self.costate_scale.fill_(scale)
            self.scale = float(scale)

        def make(usual: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
            added = self.first_layer.zero_to_add(x, self._autocast()) if usual else None
            if added is None:
                factor = self.costate_scale if usual else scale
                return lambda x, y: PlainNet._costate(self, x, y, first, factor)
            self.model.train()
            objective = self._best(update_objective, compile_with_batchnorm)

            bf16 = self.precision == "bf16"

            def add(module: nn.Module, args: Any, z: Tensor) -> Tensor:
                return (z if first else z.detach()) + added

            def work(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                handle = self.first_layer.module.register_forward_hook(add)
                try:
                    total = objective(self.model, self.loss, self.class_weights, bf16, (x,), y)
                finally:
                    handle.remove()
                factor = self.costate_scale.to(total.dtype)
                if self.graphed:
                    (p,) = self._add_gradients(total, [added], factor)
                    return total.detach(), p
                added.grad = None
                total.backward(factor)
                assert added.grad is not None
                return total.detach(), added.grad

            return work

        total, p = self._train(("costate", first), make, (x, y))
        return total.clone(), p.clone()

    def _first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        first_grad = partial(PlainNet._first_grad, self)
        g: Tensor = self._train("first_grad", lambda _: first_grad, (x, p))
        return g.clone()

    def _first_ascent(
        self, region: Region, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        key = ("first_ascent", type(region), _made_for(region))

        def first_grad(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
            return PlainNet._first_grad(self, x, p), p

        if self.syncs_in_forward:
            for _ in range(steps):
                x = ascent_step(region, x, first_grad(x, p)[0], step_size)
            return x
        return self._climb(
            key, lambda _: first_grad, region, x, p, steps, step_size, self._train_state
        )

    def _first_backward(self, x: Tensor, p: Tensor) -> None:
        def make(usual: bool) -> Callable[[Tensor, Tensor], None]:
            def work(x: Tensor, p: Tensor) -> None:
                if not (usual and self.graphed):
                    return PlainNet._first_backward(self, x, p)
                self.model.train()
                with self._autocast():
                    z = self.first_layer(x.detach())
                if z.requires_grad:
                    self._add_gradients(z, [], p.to(z.dtype))
                return None

            return work

        self._train("first_backward", make, (x, p))

    def _add_gradients(
        self, output: Tensor, also: Sequence[Tensor], weight: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Add the gradients of the weights to the static ones, in a recording. Returns those of
        `also`. (backward() may add up on another stream, which a recording does not follow.)"""
        weights = [p for p in self.model.parameters() if p.requires_grad]
        found = torch.autograd.grad(output, [*weights, *also], weight, allow_unused=True)
        used = [(p, g) for p, g in zip(weights, found, strict=False) if g is not None]
        self.reached.update(p for p, _ in used)
        torch._foreach_add_([self.gradients[p] for p, _ in used], [g for _, g in used])
        return found[len(weights) :]

    def _refresh_attack_copy(self) -> None:
        """Copy the weights into the attack copy, once after each update."""
        self.attack_copy_is_used = True
        if not self.attack_copy_is_stale:
            return
        self.attack_copy_is_stale = False
        if "refresh" in self.graphs:
            self.graphs["refresh"]()
        elif (
            self.is_on_trial
        ):  # so that the attack is compiled first; another process compiles this
            self.attack_copy.refresh()
        elif self.graphed or self.compiled:
            self._attempt(self.first_refresh)
        else:
            self.attack_copy.refresh()

    def first_refresh(self) -> None:
        """Compile and record the refresh of the attack copy."""
        refresh = self._refresher()
        if self.graphed:
            self.graphs["refresh"] = Graph(refresh, (), pool=self.pool)
        refresh()

    def _refresher(self) -> Callable[[], None]:
        """The work that copies the weights into the attack copy, to be run or recorded."""
        copy, copy_weights = self.attack_copy, self._best(copy_and_fold)
        if self.compiled:
            mark_static(self.model, copy.model)
            ahead.wait("refresh")
        return lambda: copy_weights(copy.copied, copy.folded, copy.chains)

    def _attack_state(self) -> list[Tensor]:
        """What an attack may change: in train mode, BatchNorm's statistics."""
        return list(self.model.buffers()) if self.attack_mode == "train" else []

    def _fall_back(self, error: Exception) -> None:
        super()._fall_back(error)
        self.apply_graphs.clear()
        self._evals += int(self.device_evals)
        self.device_evals.zero_()
        self.early_stops.clear()
        self.perturbations.clear()
        self.attack_copy = self._copy_for_attacks()
        self.attack_copy_is_stale = False


def _made_for(region: Region) -> Any:
    """What a recorded step of this region depends on besides its tensors: not on the radius, where
    that is in a tensor, so that it may change between epochs without recording again."""
    return None if type(region) in (LinfRegion, L2Region) else getattr(region, "ball", None)


def _suits_channels_last(model: nn.Module) -> bool:
    """Kernels for that layout want multiples of eight channels; otherwise they convert to and
    fro."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    return all(c.out_channels % 8 == 0 for c in convs)
