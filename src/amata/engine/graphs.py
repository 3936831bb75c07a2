"""Work on tensors of fixed shapes, recorded once as a CUDA graph and replayed with one launch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

WARM_UPS = 3


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """The one stream on which everything is recorded: each stream that multiplies matrices keeps
    tens of megabytes for it."""
    return torch.cuda.Stream(device)


class Graph:
    """`work(*inputs)` recorded. Called, it copies what is new into its own inputs, replays, and
    gives back its own outputs.

    The outputs are overwritten by the next call. Where an output is fed back in, nothing is copied.
    Fewer rows than recorded may be given; then the first rows of the outputs are theirs, and what
    the others hold means nothing.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        inputs: Sequence[Tensor],
        *,
        touches: Sequence[Tensor] = (),
        pool: Any = None,
        own: bool = False,
    ) -> None:
        """`touches` are tensors that the work changes beside its outputs: warming up must leave no
        trace in them. With `own` the graph works on the very tensors given, not on copies of
        them."""
        self.inputs = (
            list(inputs)
            if own
            else [t.detach().clone(memory_format=torch.preserve_format) for t in inputs]
        )
        before = [t.detach().clone() for t in touches]
        stream = _side_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Only this thread must keep still: another may be pinning the next batch's memory.
        with torch.cuda.graph(
            self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):
            self.outputs = work(*self.inputs)
        with torch.no_grad():
            for t, value in zip(touches, before, strict=True):
                t.copy_(value)
            for mine, given in zip(self.inputs, inputs, strict=True):
                mine.copy_(given)

    def __call__(self, *tensors: Tensor) -> Any:
        for own, given in zip(self.inputs, tensors, strict=True):
            if own is not given:
                (own if len(own) == len(given) else own[: len(given)]).copy_(given)
        self.graph.replay()
        return self.outputs

    def replay(self) -> None:
        """Once more on what the inputs hold."""
        self.graph.replay()
