"""Clean and robust accuracy with n, interval, cost and the attack's exact parameters."""

from amata.evaluation.evaluate import Metered, Result, evaluate, wilson
from amata.evaluation.spec import AttackSpec, parse_attack

__all__ = ["AttackSpec", "Metered", "Result", "evaluate", "parse_attack", "wilson"]
