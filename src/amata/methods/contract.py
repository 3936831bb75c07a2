"""What a training method is, and the few verbs it is written in.

A method decides how ascent on x and descent on theta interleave; the engine decides how each of them is computed. A method file holds
the paper's algorithm box and its hyper-parameters, and nothing else.
"""

from typing import Protocol

import torch
from torch import Tensor

from amata.batch import Batch
from amata.schedules import Control


class Net(Protocol):
    """The engine's verbs. Every call that runs a sample through a full forward and backward pass is counted as its cost."""

    def input_grad(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of each sample's loss at its image; no weight gradients are computed."""
        ...

    def backward(self, x: Tensor, y: Tensor, *, wrt_input: bool = False) -> Tensor | None:
        """Add the gradient of the batch-mean loss to the weights' gradients; `wrt_input` also returns it at the images."""
        ...

    def apply(self) -> None:
        """One optimiser step with the gradients so far, which are then zero again."""
        ...


Memory = dict[str, Tensor]
"""What a method keeps across batches, by name. It is saved in checkpoints, so a resumed run finds it as it was."""


class Method(Protocol):
    """One training method: a frozen dataclass whose fields are the keys of a recipe's [method] table."""

    def step(self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory) -> None:
        """Train on one batch under the control u, drawing only from rng and keeping state only in memory."""
        ...
