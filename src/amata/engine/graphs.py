"""Work on tensors of fixed shapes, recorded once as a CUDA graph and replayed with one launch."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

WARM_UPS = 3


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The one stream on which everything is recorded: each stream with matrix products keeps a
    cuBLAS workspace of tens of megabytes."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect no garbage: a graph of an earlier run that is freed while another one is recorded
    breaks the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class NotRecordable(Exception):
    """The work ran, but a CUDA graph cannot record it."""


class Graph:
    """`work(*inputs)`, recorded. A call copies its arguments into the static inputs, replays the
    graph and returns the static outputs.

    The next call overwrites the outputs. So may any older graph of the same pool: it does not know
    that its scratch memory is an output now. A static input passed as an argument is not copied. An
    argument may have fewer rows than recorded: then only the first rows of the outputs are valid.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        inputs: Sequence[Tensor],
        *,
        mutated: Sequence[Tensor] = (),
        pool: Any = None,
        copy_inputs: bool = True,
    ) -> None:
        """`mutated` are tensors that the work changes besides its outputs: they are restored after
        the warm-up, also if it fails. Without `copy_inputs` the tensors given are the static
        inputs."""
        self.work = work  # keeps the tensors that the graph reads and writes besides its inputs
        self.inputs = (
            [t.detach().clone(memory_format=torch.preserve_format) for t in inputs]
            if copy_inputs
            else list(inputs)
        )
        before = [t.detach().clone() for t in mutated]
        try:
            self._warm_up_and_record(work, pool)
        finally:
            with torch.no_grad():
                for t, value in zip(mutated, before, strict=True):
                    t.copy_(value)
        with torch.no_grad():
            for static, given in zip(self.inputs, inputs, strict=True):
                static.copy_(given)

    def _warm_up_and_record(self, work: Callable[..., Any], pool: Any) -> None:
        current = torch.cuda.current_stream()
        stream = _side_stream(torch.cuda.current_device())
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work(*self.inputs)
        current.wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Another thread may be pinning the next batch's memory, which the default mode forbids.
        recording = torch.cuda.graph(
            self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        )
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state = generator.get_state()
        try:
            with _no_garbage_collection(), recording:
                self.outputs = work(*self.inputs)
        except Exception as error:
            # A recording that fails leaves its stream as the current one, and the random generator
            # in the state of recording.
            torch.cuda.set_stream(current)
            fresh = torch.Generator(generator.device)
            fresh.set_state(state)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
            torch.cuda.synchronize()
            raise NotRecordable(str(error.__context__ or error)) from error

    def __call__(self, *tensors: Tensor) -> Any:
        with torch.no_grad():
            for static, given in zip(self.inputs, tensors, strict=True):
                if static is not given:
                    (static if static.shape == given.shape else static[: len(given)]).copy_(given)
        self.graph.replay()
        return self.outputs

    def replay(self) -> None:
        """Replay on the present values of the static inputs."""
        self.graph.replay()
