"""Clean and robust accuracy with n, interval, cost and the attack's exact parameters."""

from amata.evaluation.accuracy import ALONE, Metered, Part, Result, evaluate, wilson
from amata.evaluation.spec import AttackSpec, parse_attack

__all__ = ["ALONE", "AttackSpec", "Metered", "Part", "Result", "evaluate", "parse_attack", "wilson"]
