"""The files of a criterion study: criterion.json, and NAME.criterion.json of each strategy."""

from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from amata.metrics import Count, Finite, Index, Steps


class Tried(TypedDict):
    """The grid of an epoch, in columns. The strategy's own control comes first."""

    steps: list[Steps]
    step_size: list[Finite]
    price: list[Finite]
    """R at gamma = 1."""
    gain: list[list[Finite]]
    """The first term of the Hamiltonian on each probe batch."""


class EpochCriterion(TypedDict):
    """C in one epoch, as `Criterion.to_dict` writes it."""

    epoch: Index
    steps: Steps
    step_size: Finite
    c: Finite
    c_stderr: Finite | None
    c_of_means: Finite
    c_gain: Finite
    c_price: Finite
    hamiltonian: Finite
    best_hamiltonian: Finite
    best_steps: Steps
    best_step_size: Finite
    fosc: Finite
    feasible_gap: Finite
    per_batch: list[Finite]
    tried: Tried


class StrategyRow(TypedDict):
    """What a report shows of a strategy."""

    strategy: str
    c: Finite
    c_stderr: Finite | None
    epochs: list[EpochCriterion]


class Settings(TypedDict):
    k_max: Count


class Measured(TypedDict):
    """criterion.json."""

    settings: Settings
    strategies: list[StrategyRow]


class Epochs(TypedDict):
    """NAME.criterion.json: what is measured of a strategy so far."""

    about: dict[str, Any]
    epochs: list[EpochCriterion]


MEASURED, EPOCHS = TypeAdapter(Measured), TypeAdapter(Epochs)
