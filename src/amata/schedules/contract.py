"""What a schedule is: open-loop ones know the epoch alone, closed-loop ones also look at the
training."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Control(NamedTuple):
    """u = (K, alpha): the number of inner steps and the length of each."""

    steps: int
    step_size: float


class Schedule(Protocol):
    def __call__(self, epoch: int, epochs: int) -> Control:
        """The control of `epoch` (from 0) in a run of `epochs`."""
        ...


class Response(NamedTuple):
    """What a probe of the training found for one control."""

    control: Control
    value: float
    """The Hamiltonian's first term: what the control gains, before its cost."""
    cost: float
    """Gradient evaluations per image."""


class Account(NamedTuple):
    """What a run has spent when an epoch begins, in gradient evaluations per training image."""

    epoch: int
    epochs: int
    spent: float
    """In all so far, this epoch's probing included."""
    probing: float
    """By the probing of one epoch."""


class Choice(NamedTuple):
    """A control, and the price of a step by which it was chosen."""

    control: Control
    gamma: float


@runtime_checkable
class ClosedLoop(Protocol):
    """A schedule that is asked at the start of each epoch, with the probed responses of its
    candidates in this and earlier epochs."""

    @property
    def probe_batches(self) -> int: ...

    def candidates(self) -> list[Control]:
        """The controls to probe."""
        ...

    def choose(self, curves: Sequence[Sequence[Response]], account: Account) -> Choice:
        """The control of this epoch. `curves` has the responses of each epoch so far; the last are
        this one's."""
        ...
