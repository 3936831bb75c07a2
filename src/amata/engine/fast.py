"""The verbs at speed: what a GPU repeats is compiled, recorded as a CUDA graph and replayed.
docs/engine.md says what each part gives.

- attacks run on a frozen copy of the network in bf16, its BatchNorms folded, refreshed once after
  every update (`AttackCopy`)
- ascent steps are graphs: the step size is a scalar on the device and the images are updated in
  place, so K and alpha may change from
  epoch to epoch and nothing is compiled or recorded again (`AscentGraph`)
- the update runs in bf16 under autocast, with weights, gradients and optimiser state in fp32;
  gradients are added up in fixed places
- what an optimiser computes from gradients alone, such as Muon's matrices, is a graph; the rate,
  which changes, is not in it
- nothing waits for the device

Shapes that come once, such as a last batch with fewer images, run eagerly in the same precision.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from amata.engine.ascent import AscentGraph, moved
from amata.engine.attack_copy import AttackCopy
from amata.engine.compiler import has_compiler
from amata.engine.cudnn import no_cudnn_benchmark
from amata.engine.graphs import Graph
from amata.engine.plain import PlainNet, Precision
from amata.losses import Loss
from amata.threat import Region

BUCKETS: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)
"""Attacks on part of a batch, as of methods whose samples finish one by one, run with the next
larger of these shares of it."""


@runtime_checkable
class Directed(Protocol):
    """An optimiser whose step comes in two: much work that is the same in every step, and a move of
    the weights by the rate."""

    def momenta(self) -> list[Tensor]: ...

    def directions(self) -> Any: ...

    def move(self, directions: Any) -> None: ...


class FastNet(PlainNet):
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
        # Uncompiled, windows and zeros would cost more than they save.
        shaped = self.graphed and self.compiled and precision == "bf16"
        self.attacked = AttackCopy(
            model, train_mode=self.attack_mode == "train", dtype=dtype, shaped=shaped
        )
        if self.graphed:
            if self.layout and self.ema is not None:
                self.ema.model.to(memory_format=self.layout)  # type: ignore[call-overload]
            for p in model.parameters():
                p.grad = torch.zeros_like(p)  # in one place for good: graphs add to it
        self.graphs: dict[Hashable, Graph] = {}
        self.functions: dict[Hashable, Callable[..., Tensor]] = {}
        self.ascents: dict[Hashable, AscentGraph] = {}
        self.shapes: dict[Hashable, torch.Size] = {}
        self.largest: dict[Hashable, int] = {}
        self.stale = False
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
            [f"{len(self.attacked.folds)} BatchNorms folded in attacks"]
            if self.attacked.folds
            else []
        )
        return ", ".join(parts)

    def _step(self) -> None:
        if self.graphed and isinstance(self.optimizer, Directed):
            if "directions" not in self.graphs:
                with self._making():
                    self.graphs["directions"] = Graph(
                        self.optimizer.directions,
                        (),
                        touches=self.optimizer.momenta(),
                        pool=self.pool,
                    )
            self.optimizer.move(self.graphs["directions"]())
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.graphed)
        self.stale = True

    def weights_changed(self) -> None:
        self.stale = True
        self.graphs.pop("directions", None)  # an optimiser's state may now lie elsewhere

    # The work itself. Each piece is made twice: to be recorded, compiled, and to be run once on an
    # unusual shape, as it is.

    def _logits(self, x: Tensor) -> Tensor:
        self._freshen()

        def work(x: Tensor) -> Tensor:
            with torch.no_grad():
                return self._attacked(x)

        return self._run("logits", lambda _: work, (x,), self._attack_state)

    def _input_grad(self, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        self._freshen()
        key, n = ("input_grad", loss), len(x)
        if not self.graphed or self.attack_mode == "train":
            return self._run(
                key, lambda recorded: self._attack(loss, recorded), (x, y), self._attack_state
            )
        full = self.largest[key] = max(n, self.largest.get(key, 0))
        size = next(s for s in sorted(math.ceil(share * full) for share in BUCKETS) if s >= n)
        if (key, size) not in self.graphs:
            rows = [torch.cat([t, t[-1:].expand(size - n, *t.shape[1:])]) for t in (x, y)]
            with self._making():
                self.graphs[key, size] = Graph(self._attack(loss, True), rows, pool=self.pool)
        g, z = self.graphs[key, size](x, y)
        return (g, z) if size == n else (g[:n], z[:n])

    def _attacked(self, x: Tensor) -> Tensor:
        with self._autocast():
            z = self.attacked.model(x)
        return z.float() if z.dtype == torch.bfloat16 else z

    def _attack(
        self, loss: Loss, recorded: bool
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def value(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = self._attacked(x)
            return loss(z, y).sum(), z  # summed, not averaged: small gradients would vanish in bf16

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
        self._freshen()
        key = ("ascent", loss, type(region), getattr(region, "ball", None))
        if not self.graphed or not self._is_usual(key, x):
            attack = self._attack(loss, False)
            with no_cudnn_benchmark():
                for _ in range(steps):
                    x = moved(region, x, attack(x, y)[0], step_size)
            return x
        if self.step_size != step_size:
            self.alpha.fill_(step_size)
            self.step_size = step_size
        if key not in self.ascents:
            with self._making():
                move = self._compiled(("move", type(region)), moved)
                self.ascents[key] = AscentGraph(
                    self._attack(loss, True),
                    move,
                    region,
                    x,
                    y,
                    self.alpha,
                    self._attack_state(),
                    self.pool,
                )
        return self.ascents[key](region, x, y, steps)

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
            return loss(*[self._forward(x) for x in xs], y).mean()

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

        self.stale |= self.more  # BatchNorm's statistics move with every part of a batch
        return self._train(("backward", loss, len(inputs), scale, wrt_input), make, (*inputs, y))

    def _costate(self, x: Tensor, y: Tensor, first: bool, scale: float) -> tuple[Tensor, Tensor]:
        return self._as_plain(
            ("costate", first, scale),
            lambda x, y: PlainNet._costate(self, x, y, first, scale),
            (x, y),
        )

    def _first_grad(self, x: Tensor, p: Tensor) -> Tensor:
        return self._as_plain("first_grad", lambda x, p: PlainNet._first_grad(self, x, p), (x, p))

    def _first_backward(self, x: Tensor, p: Tensor) -> None:
        self._as_plain("first_backward", lambda x, p: PlainNet._first_backward(self, x, p), (x, p))

    # How work is carried out

    def _as_plain(
        self, key: Hashable, plain: Callable[..., Any], tensors: tuple[Tensor, ...]
    ) -> Any:
        """What the plain engine does, recorded as it is: the cut through a network that the split
        verbs make is nothing for a compiler."""
        return self._train(key, lambda _: plain, tensors)

    def _train(
        self, key: Hashable, make: Callable[[bool], Callable[..., Any]], tensors: tuple[Tensor, ...]
    ) -> Any:
        """Work that changes weight gradients. What processes say to each other in it cannot be
        recorded."""
        return (
            make(False)(*tensors)
            if self.syncs_in_forward
            else self._run(key, make, tensors, self._train_state)
        )

    def _compiled(self, key: Hashable, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled where that is wanted; once for every key."""
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
        touches: Callable[[], list[Tensor]],
    ) -> Any:
        """Replay the recorded work, recording it first; on an unusual shape, or without a GPU, do
        it as it is."""
        if not self.graphed or not self._is_usual(key, tensors[0]):
            with no_cudnn_benchmark():
                return make(False)(*tensors)
        if key not in self.graphs:
            with self._making():
                self.graphs[key] = Graph(make(True), tensors, touches=touches(), pool=self.pool)
        return self.graphs[key](*tensors)

    def _is_usual(self, key: Hashable, x: Tensor) -> bool:
        """The first shape that a piece of work meets is the usual one; smaller ones, such as a last
        small batch, come once an epoch. A larger one takes over: a run may be resumed just before a
        last small batch."""
        if len(x) > self.shapes.setdefault(key, x.shape)[0]:
            self.shapes[key] = x.shape
            self.graphs.pop(key, None)
            self.ascents.pop(key, None)
        return self.shapes[key] == x.shape

    def _freshen(self) -> None:
        """Bring the attacked copy up to date, once after each update."""
        if not self.stale:
            return
        self.stale = False
        if not self.graphed:
            self.attacked.refresh()
            return
        if "refresh" not in self.graphs:
            with self._making():
                refresh = (
                    torch.compile(self.attacked.refresh, dynamic=False)
                    if self.compiled
                    else self.attacked.refresh
                )
                self.graphs["refresh"] = Graph(refresh, (), pool=self.pool)
        self.graphs["refresh"]()

    def _attack_state(self) -> list[Tensor]:
        """What an attack may change: BatchNorm's statistics, where it runs in train mode."""
        return list(self.model.buffers()) if self.attack_mode == "train" else []

    def _train_state(self) -> list[Tensor]:
        return [
            *self.model.buffers(),
            *(p.grad for p in self.model.parameters() if p.grad is not None),
        ]

    @contextmanager
    def _making(self) -> Iterator[None]:
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        # The limit on compiling anew is for functions that change; ours are shared by all networks
        # of a process, each with its shapes.
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
    """Kernels for that layout want channels in eights; with others they copy to and fro."""
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    return all(c.out_channels % 8 == 0 for c in convs)
