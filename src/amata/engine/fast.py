"""The engine's verbs on a GPU, fast: compiled, recorded as CUDA graphs and replayed. docs/engine.md
says what each part gains.

- Attacks run on a frozen copy of the network in bf16 with folded BatchNorms, refreshed once after
  every update (`AttackCopy`).
- Ascent steps are graphs. The step size is a device scalar and the images are updated in place, so
  K and alpha may change between epochs without compiling or recording again (`AscentGraph`).
- The update runs in bf16 under autocast, with weights, gradients and optimiser state in fp32.
  Gradients accumulate in static tensors.
- What an optimiser computes from gradients alone, such as Muon's matrices, is a graph. The learning
  rate changes, so it is not part of it.
- The host never waits for the device.

Rare shapes, such as a smaller last batch, run eagerly in the same precision.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from amata.engine.ascent import AscentGraph, ascent_step
from amata.engine.attack_copy import AttackCopy
from amata.engine.compiler import has_compiler
from amata.engine.cudnn import no_cudnn_benchmark
from amata.engine.early_stop import EarlyStop, bucket_size, stop_or_step
from amata.engine.graphs import Graph
from amata.engine.plain import PlainNet, Precision
from amata.errors import AmataError
from amata.losses import Loss, as_logits
from amata.seeds import Noise
from amata.threat import Ball, Region

MAX_VARIANTS = 16
"""How many different (loss, scale) pairs one verb may get: each is compiled and recorded."""


@runtime_checkable
class GraphableOptimizer(Protocol):
    """An optimiser whose step is in two parts: `directions`, the same work in every step, which a
    CUDA graph can record, and `move`, which applies them with the current learning rate."""

    def momenta(self) -> list[Tensor]:
        """The tensors that `directions` changes."""
        ...

    def directions(self) -> Any: ...

    def move(self, directions: Any) -> None: ...


class FastNet(PlainNet):
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
        super().__init__(model, optimizer, precision=precision, **options)
        self.graphed = self.device.type == "cuda"
        self.compiled = self.graphed and has_compiler() if compiled is None else compiled
        dtype = torch.bfloat16 if precision == "bf16" else next(model.parameters()).dtype
        self.layout = (
            torch.channels_last
            if (_suits_channels_last(model) if channels_last is None else channels_last)
            else None
        )
        if self.graphed and self.layout:
            model.to(memory_format=self.layout)  # type: ignore[call-overload]
        # Uncompiled, windows and padding would cost more than they save.
        tensor_core_layers = self.graphed and self.compiled and precision == "bf16"
        self.attack_copy = AttackCopy(
            model,
            train_mode=self.attack_mode == "train",
            dtype=dtype,
            tensor_core_layers=tensor_core_layers,
        )
        self.attack_copy_is_stale = False
        if self.graphed:
            if self.layout and self.ema is not None:
                self.ema.model.to(memory_format=self.layout)  # type: ignore[call-overload]
            for p in model.parameters():
                p.grad = torch.zeros_like(p)  # never reallocated: graphs add to it
        self.graphs: dict[Hashable, Graph] = {}
        self.functions: dict[Hashable, Callable[..., Tensor]] = {}
        self.ascent_graphs: dict[Hashable, AscentGraph] = {}
        self.early_stops: dict[Hashable, tuple[Hashable, EarlyStop]] = {}
        self.device_evals = torch.zeros((), device=self.device, dtype=torch.long)
        """Gradient evaluations of samples whose number only the device knows."""
        self.usual_shapes: dict[Hashable, torch.Size] = {}
        self.largest_batches: dict[Hashable, int] = {}
        self.variants: dict[str, set[tuple[Callable[..., Any], float]]] = {}
        self.alpha = torch.zeros((), device=self.device)
        self.step_size: float | None = None
        self.pool = torch.cuda.graph_pool_handle() if self.graphed else None

    def describe(self) -> str:
        parts = [f"fast engine, {self.precision}"]
        parts += (
            ["torch.compile"]
            if self.compiled
            else ["not compiled (no Triton or no C compiler)"]
            if self.graphed
            else []
        )
        parts += (
            ["CUDA graphs", *(["channels_last"] if self.layout else [])]
            if self.graphed
            else ["eager (no CUDA device)"]
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

    def _step(self) -> None:
        if self.graphed and isinstance(self.optimizer, GraphableOptimizer):
            if "directions" not in self.graphs:
                with self._compiling():
                    self.graphs["directions"] = Graph(
                        self.optimizer.directions,
                        (),
                        mutated=self.optimizer.momenta(),
                        pool=self.pool,
                    )
            self.optimizer.move(self.graphs["directions"]())
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.graphed)
        self.attack_copy_is_stale = True

    def weights_changed(self) -> None:
        self.attack_copy_is_stale = True
        # the optimiser's state may be in other tensors now
        self.graphs.pop("directions", None)

    def backward(
        self,
        x: Tensor | tuple[Tensor, ...],
        y: Tensor,
        *,
        loss: Callable[..., Tensor] | None = None,
        scale: float = 1.0,
        wrt_input: bool = False,
    ) -> Tensor | None:
        # Checked here, where `scale` is still what the method passed: without the part's weight.
        self._check_variants("backward", loss or self.loss, scale)
        return super().backward(x, y, loss=loss, scale=scale, wrt_input=wrt_input)

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
                return self._attack_logits(x)

        return self._run("logits", lambda _: work, (x,), self._attack_state)

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self._check_variants("input_grad", loss)
        self._refresh_attack_copy()
        key, n = ("input_grad", loss), len(x)
        if not self.graphed or self.attack_mode == "train":
            return self._run(
                key,
                lambda recorded: self._make_input_grad(loss, recorded),
                (x, y),
                self._attack_state,
            )
        full = self.largest_batches[key] = max(n, self.largest_batches.get(key, 0))
        size = bucket_size(n, full)
        if (key, size) not in self.graphs:
            rows = [torch.cat([t, t[-1:].expand(size - n, *t.shape[1:])]) for t in (x, y)]
            with self._compiling():
                self.graphs[key, size] = Graph(
                    self._make_input_grad(loss, True), rows, pool=self.pool
                )
        g, z = self.graphs[key, size](x, y)
        return (g, z) if size == n else (g[:n], z[:n])

    def _attack_logits(self, x: Tensor) -> Tensor:
        with self._autocast():
            z = as_logits(self.attack_copy.model(x))
        return z.float() if z.dtype == torch.bfloat16 else z

    def _make_input_grad(
        self, loss: Loss, recorded: bool
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def value(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = self._attack_logits(x)
            return loss(z, y).sum(), z  # the sum, not the mean: small gradients underflow in bf16

        best = self._compiled(("attack", loss), value) if recorded else value

        def work(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            total, z = best(x, y)
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
        key = ("ascent", loss, type(region), getattr(region, "ball", None))
        if not self.graphed or not self._is_usual(key, x):
            input_grad = self._make_input_grad(loss, False)
            with no_cudnn_benchmark():
                for _ in range(steps):
                    x = ascent_step(region, x, input_grad(x, y)[0], step_size)
            return x
        if self.step_size != step_size:
            self.alpha.fill_(step_size)
            self.step_size = step_size
        if key not in self.ascent_graphs:
            with self._compiling():
                self.ascent_graphs[key] = AscentGraph(
                    self._make_input_grad(loss, True),
                    self._compiled(("ascent_step", type(region)), ascent_step),
                    region,
                    x,
                    y,
                    self.alpha,
                    self._attack_state(),
                    self.pool,
                )
        return self.ascent_graphs[key](region, x, y, steps)

    def _ascent_while(
        self,
        ball: Ball,
        x: Tensor,
        start: Tensor,
        y: Tensor,
        steps: int,
        step_size: float,
        goes_on: Callable[..., tuple[Tensor, ...]],
        state: tuple[Tensor, ...],
        noise: Noise | None,
    ) -> Tensor:
        self._check_variants("ascent_while", goes_on)
        # In train mode BatchNorm normalises over exactly the samples that are left.
        if not self.graphed or self.attack_mode == "train" or steps <= 0:
            return super()._ascent_while(ball, x, start, y, steps, step_size, goes_on, state, noise)
        self._refresh_attack_copy()
        if self.step_size != step_size:
            self.alpha.fill_(step_size)
            self.step_size = step_size
        std = None if noise is None else noise.std
        made_for = (ball, std, x.shape[1:], x.dtype)
        known = self.early_stops.get(goes_on)
        if known is None or known[0] != made_for or len(x) > len(known[1].out):
            step = self._compiled("stop_or_step", stop_or_step)
            attack = EarlyStop(
                self._make_input_grad(self.attack_loss, True),
                partial(step, ball, goes_on, std, self.alpha),
                self.device_evals,
                x,
                self._record,
            )
            self.early_stops[goes_on] = known = made_for, attack
        return known[1](x, start, y, steps, state, noise)

    def _record(self, work: Callable[[], None], mutated: list[Tensor]) -> Graph:
        with self._compiling():
            return Graph(work, (), mutated=mutated, pool=self.pool)

    def _backward(
        self,
        inputs: tuple[Tensor, ...],
        y: Tensor,
        loss: Callable[..., Tensor],
        scale: float,
        wrt_input: bool,
    ) -> tuple[Tensor, Tensor | None]:
        def value(*tensors: Tensor) -> Tensor:
            *xs, y = tensors
            return self._mean(loss(*[self._forward(x) for x in xs], y), y)

        def make(recorded: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
            self.model.train()
            best = (
                self._compiled(("train", loss, len(inputs), wrt_input), value)
                if recorded
                else value
            )
            weights = [p for p in self.model.parameters() if p.requires_grad]

            def work(*tensors: Tensor) -> tuple[Tensor, Tensor | None]:
                *xs, y = tensors
                xs = [t.detach().requires_grad_(wrt_input) for t in xs]
                total = best(*xs, y)
                scaled = total * scale if scale != 1 else total
                if not recorded:
                    scaled.backward()
                    return total.detach(), xs[0].grad
                found = torch.autograd.grad(
                    scaled, [*weights, *(xs[:1] if wrt_input else [])], allow_unused=True
                )
                used = [(p.grad, g) for p, g in zip(weights, found, strict=False) if g is not None]
                torch._foreach_add_([a for a, _ in used], [g for _, g in used])  # type: ignore[misc]
                return total.detach(), found[-1] if wrt_input else None

            return work

        # every part of a batch updates BatchNorm's statistics
        self.attack_copy_is_stale |= self.accumulating
        return self._train(("backward", loss, len(inputs), scale, wrt_input), make, (*inputs, y))

    def _costate(self, x: Tensor, y: Tensor, first: bool, scale: float) -> tuple[Tensor, Tensor]:
        def value(x: Tensor, y: Tensor) -> Tensor:
            return self._mean(self.loss(self._forward(x), y), y)

        def make(recorded: bool) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
            added = self.first_layer.zero_to_add(x, self._autocast()) if recorded else None
            if added is None:
                return lambda x, y: PlainNet._costate(self, x, y, first, scale)
            self.model.train()
            best = self._compiled(("costate", first), value)

            def add(module: nn.Module, args: Any, z: Tensor) -> Tensor:
                return (z if first else z.detach()) + added

            def work(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                added.grad = None
                handle = self.first_layer.module.register_forward_hook(add)
                try:
                    total = best(x, y)
                finally:
                    handle.remove()
                (total * scale if scale != 1 else total).backward()
                assert added.grad is not None
                return total.detach(), added.grad  # p

            return work

        return self._train(("costate", first, scale), make, (x, y))

    def _first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        return self._uncompiled("first_grad", lambda x, p: PlainNet._first_grad(self, x, p), (x, p))

    def _first_ascent(
        self, region: Region, x: Tensor, p: Tensor, steps: int, step_size: float
    ) -> Tensor:
        key = ("first_ascent", type(region), getattr(region, "ball", None))
        if not self.graphed or self.syncs_in_forward or not self._is_usual(key, x):
            with no_cudnn_benchmark():
                for _ in range(steps):
                    x = ascent_step(region, x, PlainNet._first_grad(self, x, p), step_size)
            return x

        if self.step_size != step_size:
            self.alpha.fill_(step_size)
            self.step_size = step_size
        if key not in self.ascent_graphs:

            def first_grad(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
                return PlainNet._first_grad(self, x, p), p

            with self._compiling():
                self.ascent_graphs[key] = AscentGraph(
                    first_grad,
                    self._compiled(("ascent_step", type(region)), ascent_step),
                    region,
                    x,
                    p,
                    self.alpha,
                    self._train_state(),
                    self.pool,
                )
        return self.ascent_graphs[key](region, x, p, steps)

    def _first_backward(self, x: Tensor, p: Tensor) -> None:
        self._uncompiled(
            "first_backward", lambda x, p: PlainNet._first_backward(self, x, p), (x, p)
        )

    # How work is executed

    def _uncompiled(
        self, key: Hashable, plain: Callable[..., Any], tensors: tuple[Tensor, ...]
    ) -> Any:
        """The plain engine's work, recorded but not compiled: torch.compile cannot follow the hooks
        that split a network."""
        return self._train(key, lambda _: plain, tensors)

    def _train(
        self, key: Hashable, make: Callable[[bool], Callable[..., Any]], tensors: tuple[Tensor, ...]
    ) -> Any:
        """Run work that changes weight gradients; eagerly if it communicates, which a graph cannot
        record."""
        return (
            make(False)(*tensors)
            if self.syncs_in_forward
            else self._run(key, make, tensors, self._train_state)
        )

    def _compiled(self, key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled if compilation is on; once for every key."""
        if key not in self.functions:
            self.functions[key] = (
                torch.compile(function, dynamic=False) if self.compiled else function
            )
        return self.functions[key]

    def _run(
        self,
        key: Hashable,
        make: Callable[[bool], Callable[..., Any]],
        tensors: tuple[Tensor, ...],
        mutated: Callable[[], list[Tensor]],
    ) -> Any:
        """Replay the recorded work, after recording it once. On a rare shape, or without a GPU, run
        it eagerly."""
        if not self.graphed or not self._is_usual(key, tensors[0]):
            with no_cudnn_benchmark():
                return make(False)(*tensors)
        if key not in self.graphs:
            with self._compiling():
                self.graphs[key] = Graph(make(True), tensors, mutated=mutated(), pool=self.pool)
        return self.graphs[key](*tensors)

    def _is_usual(self, key: Hashable, x: Tensor) -> bool:
        """Whether x has the usual shape: the first one seen, or the largest since.

        A smaller one, such as the last batch's, occurs once an epoch. The first one may itself be
        that of a last batch, in a run that is resumed just before it.
        """
        if len(x) > self.usual_shapes.setdefault(key, x.shape)[0]:
            self.usual_shapes[key] = x.shape
            self.graphs.pop(key, None)
            self.ascent_graphs.pop(key, None)
        return self.usual_shapes[key] == x.shape

    def _refresh_attack_copy(self) -> None:
        """Copy the weights into the attack copy, once after each update."""
        if not self.attack_copy_is_stale:
            return
        self.attack_copy_is_stale = False
        if not self.graphed:
            self.attack_copy.refresh()
            return
        if "refresh" not in self.graphs:
            with self._compiling():
                refresh = (
                    torch.compile(self.attack_copy.refresh, dynamic=False)
                    if self.compiled
                    else self.attack_copy.refresh
                )
                self.graphs["refresh"] = Graph(refresh, (), pool=self.pool)
        self.graphs["refresh"]()

    def _attack_state(self) -> list[Tensor]:
        """What an attack may change: in train mode, BatchNorm's statistics."""
        return list(self.model.buffers()) if self.attack_mode == "train" else []

    def _train_state(self) -> list[Tensor]:
        return [
            *self.model.buffers(),
            *(p.grad for p in self.model.parameters() if p.grad is not None),
        ]

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Time what is compiled and recorded in the with block."""
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        # Dynamo limits recompilations per function. All networks of a process share ours, each
        # with its own shapes, so the limit has to be high.
        limit = (
            "recompile_limit"
            if hasattr(torch._dynamo.config, "recompile_limit")
            else "cache_size_limit"
        )
        with torch._dynamo.config.patch({limit: 1024}):
            yield
        torch.cuda.synchronize(self.device)
        self.compile_seconds += time.perf_counter() - started


def _suits_channels_last(model: nn.Module) -> bool:
    """Kernels for that layout want multiples of eight channels; otherwise they convert to and
    fro."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    return all(c.out_channels % 8 == 0 for c in convs)
