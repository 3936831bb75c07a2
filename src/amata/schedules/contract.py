"""What a schedule is. Open-loop: a function of the epoch. Closed-loop: it sees the training too."""

import inspect
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from amata.errors import InputError
from amata.quantity import MOST, whole
from amata.schedules.control import Control, read_control


class Schedule(Protocol):
    """An open-loop schedule: a pure function of the epoch."""

    def __call__(self, epoch: int, epochs: int) -> Control[float]:
        """The control of `epoch` (from 0) in a run of `epochs`."""
        ...


class Response(NamedTuple):
    """What a probe measured for one candidate control."""

    control: Control[int]
    value: float
    """The first term of the Hamiltonian: what the control gains, before its cost."""
    cost: float
    """Gradient evaluations per image."""


class Account(NamedTuple):
    """What a run has spent when an epoch begins, in gradient evaluations per training image."""

    epoch: int
    epochs: int
    spent: float
    """In all so far, with this epoch's probing."""
    probing: float
    """By the probing of one epoch."""


class Choice(NamedTuple):
    """The control that a closed-loop schedule chose, and the price of a step that it used."""

    control: Control[int]
    gamma: float


@runtime_checkable
class ClosedLoop(Protocol):
    """A schedule that chooses each epoch's control from what probes of its candidates measured."""

    @property
    def probe_batches(self) -> int:
        """Batches that every candidate is measured on."""
        ...

    def candidates(self) -> list[Control]:
        """The controls to probe."""
        ...

    def choose(self, curves: Sequence[Sequence[Response]], account: Account) -> Choice:
        """The control of this epoch. `curves` has the responses of every epoch so far, this one's
        last."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A schedule that knows the end of its range, which a run may not reach: a linear one takes
    k_max at t = T, after the last epoch."""

    def largest(self) -> Control[float]:
        """The control with the most steps."""
        ...


AnySchedule = Schedule | ClosedLoop


def check_epoch(epoch: int, epochs: int) -> None:
    """Refuse an epoch outside the run. The last epoch is epochs - 1; `epochs` itself, the end of
    the run, is the formulas' t = T."""
    end, now = whole(epochs, "epochs", 1), whole(epoch, "epoch", -MOST)
    if not 0 <= now <= end:
        raise InputError(f"epoch = {epoch} is not between 0 and epochs = {epochs}")


# Only these three functions know both kinds.


def closed_loop(schedule: AnySchedule) -> ClosedLoop | None:
    """The schedule, if it chooses its controls during training."""
    return schedule if isinstance(schedule, ClosedLoop) else None


def planned_controls(schedule: AnySchedule, epochs: int) -> list[Control[float]] | None:
    """The control of every epoch; None for a closed-loop schedule."""
    if isinstance(schedule, ClosedLoop):
        return None
    try:
        inspect.signature(schedule).bind(0, epochs)
    except TypeError as error:
        raise InputError(
            f"schedule {schedule!r} cannot be called as schedule(epoch, epochs): {error}"
        ) from None
    except ValueError:
        pass  # a built-in without a signature
    found = []
    for epoch in range(epochs):
        value = schedule(epoch, epochs)
        try:
            found.append(read_control(value))
        except InputError as error:
            raise InputError(f"in epoch {epoch + 1} of {epochs}: {error}") from None
    return found


def largest_control(schedule: AnySchedule, epochs: int) -> Control:
    """The control with the most steps that a schedule is made for, of one batch."""
    if isinstance(schedule, Bounded):
        return schedule.largest().parts()[-1][1]
    if isinstance(schedule, ClosedLoop):
        return max(schedule.candidates(), key=lambda u: u.steps)
    planned = planned_controls(schedule, epochs) or []
    return max(planned, key=lambda u: u.steps).parts()[-1][1]
