"""How the fast engine executes work: compiled, recorded as a CUDA graph, or eagerly.

Work is made by a function `make(usual)`: for the usual shape in its best form, else in its eager
one. It is recorded once and then replayed. What cannot be compiled or recorded falls back to the
next best way.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from amata import ahead
from amata.engine.ascent import AscentGraph
from amata.engine.compiler import compiled, compiling, has_compiler
from amata.engine.cudnn import no_cudnn_benchmark
from amata.engine.graphs import Graph, NotRecordable
from amata.engine.plain import PlainNet, Precision
from amata.errors import AmataError, shorten

T = TypeVar("T")


class RecordedNet(PlainNet):
    """A network whose work is compiled and recorded on a GPU."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Precision,
        compiled: bool | None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, precision=precision, **options)
        self.graphed = self.device.type == "cuda"
        self.compiled = self.graphed if compiled is None else compiled
        self.not_compiled = ""
        """Why not, if the device would profit from it."""
        self.marker: Path | None = None
        """The file that says that this work is compiled and on disk."""
        if self.graphed and self.compiled and not has_compiler():
            self.compiled, self.not_compiled = False, "no Triton or no C compiler"
        self.gradients: dict[Tensor, Tensor] = {}
        """Where gradients accumulate: never reallocated, because graphs add to them."""
        self.reached: set[Tensor] = set()
        """The weights that gradients have reached."""
        self.graphs: dict[Hashable, Graph] = {}
        self.ascent_graphs: dict[Hashable, AscentGraph] = {}
        self.usual_shapes: dict[Hashable, torch.Size] = {}
        self.is_compiling = False
        self.pool = torch.cuda.graph_pool_handle() if self.graphed else None

    def _train(
        self, key: Hashable, make: Callable[[bool], Callable[..., Any]], tensors: tuple[Tensor, ...]
    ) -> Any:
        """Run work that changes weight gradients; eagerly if it communicates, which a graph cannot
        record."""
        if self.syncs_in_forward:
            return make(False)(*tensors)
        if self._sized(key) in self.graphs or not self.graphed:
            return self._run(key, make, tensors, self._train_state)
        if self.compiled:
            ahead.wait("update")
        with self._static_gradients():
            result = self._run(key, make, tensors, self._train_state)
        if self.compiled and self.marker is not None:
            self._mark(self.marker)
        return result

    def _mark(self, marker: Path) -> None:
        with suppress(OSError):  # only an estimate needs it
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    @contextmanager
    def _static_gradients(self) -> Iterator[None]:
        """While graphs are recorded, every weight has its static gradient; afterwards only those
        that gradients have reached. The others have none, so the optimiser leaves them alone."""
        for p, g in self.gradients.items():
            p.grad = g
        known = len(self.reached)
        try:
            yield
        finally:
            for p in self.gradients.keys() - self.reached:
                p.grad = None
        if len(self.reached) > known:
            self.weights_changed()  # what is recorded of the optimiser does not know the new ones

    def _best(self, function: Callable[..., Any], backend: Any = "inductor") -> Callable[..., Any]:
        """A module-level function, compiled if compilation is on."""
        return compiled(function, backend) if self.compiled else function

    def _run(
        self,
        key: Hashable,
        make: Callable[[bool], Callable[..., Any]],
        tensors: tuple[Tensor, ...],
        mutated: Callable[[], list[Tensor]],
    ) -> Any:
        """Replay the recorded work, after recording it once. On a rare shape, or without a GPU, run
        it eagerly."""
        key = self._sized(key)
        if not self._is_usual(key, tensors[0]):
            with no_cudnn_benchmark():
                return make(False)(*tensors)
        if key in self.graphs:
            return self.graphs[key](*tensors)
        if not (self.graphed or self.compiled):
            return make(False)(*tensors)

        def run() -> Any:
            if not self.graphed:
                return make(True)(*tensors)
            self.graphs[key] = Graph(make(True), tensors, mutated=mutated(), pool=self.pool)
            return self.graphs[key](*tensors)

        return self._attempt(run, mutated)

    def _attempt(self, run: Callable[[], T], mutated: Callable[[], list[Tensor]] = list) -> T:
        """Run what compiles and records. Where this model cannot be compiled or recorded, restore
        what the attempt changed, say so, and run it the next best way."""
        while True:
            states = torch.get_rng_state(), self._device_rng_state()
            before = [] if self.graphed else [(t, t.detach().clone()) for t in mutated()]
            try:
                with self._compiling():
                    return run()
            except (AmataError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                if not self.compiled and not isinstance(error, NotRecordable):
                    raise
                with torch.no_grad():
                    for t, value in before:
                        t.copy_(value)
                torch.set_rng_state(states[0])
                if states[1] is not None:
                    torch.cuda.set_rng_state(states[1], self.device)
                self._fall_back(error)

    def _device_rng_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

    def _fall_back(self, error: Exception) -> None:
        """Work without torch.compile, or without CUDA graphs too."""
        why = shorten(error, 120)
        if isinstance(error, NotRecordable):
            self.note(f"CUDA graphs cannot record this model ({why}): it trains eagerly")
            self.graphed = False
        else:
            self.note(f"torch.compile fails for this model ({why}): it trains uncompiled")
            self.not_compiled = "torch.compile fails"
        self.compiled = False
        self.graphs.clear()
        self.ascent_graphs.clear()
        # A tensor of a dropped graph may be alive, and then its pool cannot be used again.
        self.pool = torch.cuda.graph_pool_handle() if self.graphed else None

    def _sized(self, key: Hashable) -> Hashable:
        """A name for work on images of the present size, each of which is compiled and recorded."""
        return key if self.image_size is None else (key, self.image_size)

    def _is_usual(self, key: Hashable, x: Tensor) -> bool:
        """Whether x has the usual shape of its size: the first one seen, or the largest since.

        A smaller one, such as the last batch's, occurs once an epoch. The first one may itself be
        that of a last batch, in a run that is resumed just before it.
        """
        if len(x) > self.usual_shapes.setdefault(key, x.shape)[0]:
            self.usual_shapes[key] = x.shape
            self.graphs.pop(key, None)
            self.ascent_graphs.pop(key, None)
        return self.usual_shapes[key] == x.shape

    def _train_state(self) -> list[Tensor]:
        return [
            *self.model.buffers(),
            *(p.grad for p in self.model.parameters() if p.grad is not None),
        ]

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Time what is compiled and recorded in the with block."""
        if self.is_compiling:  # the outer block is timed
            yield
            return
        self._synchronize()
        started, self.is_compiling = time.perf_counter(), True
        try:
            with compiling() if self.compiled else nullcontext():
                yield
            self._synchronize()
        finally:
            self.is_compiling = False
        self.compile_seconds += time.perf_counter() - started

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _record(self, work: Callable[[], None], mutated: list[Tensor]) -> Graph:
        with self._compiling():
            return Graph(work, (), mutated=mutated, pool=self.pool)
