"""Adversarial training as optimal control: the Hamiltonian, the criterion C, Pontryagin's
equations, and the problems solved with them."""

from amata.control.greedy import (
    ControlSpace,
    Criterion,
    Search,
    StrategyCriterion,
    criterion,
    maximise,
    may_share,
    strategy,
)
from amata.control.hamiltonian import (
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
    "criterion",
    "hamiltonian",
    "maximise",
    "may_share",
    "strategy",
]
