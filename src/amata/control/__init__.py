"""Adversarial training as optimal control: the Hamiltonian, the criterion C, Pontryagin's maximum
principle, and problems solved with it."""

from amata.control.gap import Candidate, Criterion, StrategyCriterion, strategy
from amata.control.greedy import (
    ControlSpace,
    Search,
    can_share_paths,
    criterion,
    maximise,
)
from amata.control.probing import (
    COSTS,
    GradientCost,
    Measured,
    Probe,
    RunningCost,
    SecondCost,
    StepCost,
    hamiltonian,
)

__all__ = [
    "COSTS",
    "Candidate",
    "ControlSpace",
    "Criterion",
    "GradientCost",
    "Measured",
    "Probe",
    "RunningCost",
    "Search",
    "SecondCost",
    "StepCost",
    "StrategyCriterion",
    "can_share_paths",
    "criterion",
    "hamiltonian",
    "maximise",
    "strategy",
]
