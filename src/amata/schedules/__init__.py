"""Schedules over a method's control u_t = (K_t, alpha_t). To add one: write its class, give it a
name here."""

from amata.schedules.adaptive import Adaptive
from amata.schedules.annealing import Constant, Exponential, Linear, Piecewise
from amata.schedules.contract import (
    Account,
    AnySchedule,
    Choice,
    ClosedLoop,
    Response,
    Schedule,
    closed_loop,
    largest_control,
    planned_controls,
)
from amata.schedules.control import Control, is_single_step, only_k_changes, reaching

SCHEDULES: dict[str, type] = {
    "constant": Constant,
    "linear": Linear,
    "exponential": Exponential,
    "piecewise": Piecewise,
    "adaptive": Adaptive,
}

__all__ = [
    "SCHEDULES",
    "Account",
    "Adaptive",
    "AnySchedule",
    "Choice",
    "ClosedLoop",
    "Constant",
    "Control",
    "Exponential",
    "Linear",
    "Piecewise",
    "Response",
    "Schedule",
    "closed_loop",
    "is_single_step",
    "largest_control",
    "only_k_changes",
    "planned_controls",
    "reaching",
]
