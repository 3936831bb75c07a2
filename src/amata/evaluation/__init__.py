"""Clean and robust accuracy with n, interval, cost and the attack's exact parameters."""

from amata.attacks import parse_attack
from amata.evaluation.accuracy import (
    SINGLE_PROCESS,
    GradCounter,
    Result,
    Shard,
    evaluate,
    wilson,
)

__all__ = [
    "SINGLE_PROCESS",
    "GradCounter",
    "Result",
    "Shard",
    "evaluate",
    "parse_attack",
    "wilson",
]
