"""Clean and robust accuracy with n, interval, cost and the attack's exact parameters."""

from amata.attacks import parse_attack
from amata.evaluation.accuracy import Progress, evaluate
from amata.evaluation.batches import SINGLE_PROCESS, Shard
from amata.evaluation.counter import GradCounter
from amata.evaluation.loop import Attacked
from amata.evaluation.masking import LEARNT_NOTHING
from amata.evaluation.result import Result, class_counts, grouped_warnings, pack, unpack, wilson
from amata.evaluation.tally import Store

__all__ = [
    "LEARNT_NOTHING",
    "SINGLE_PROCESS",
    "Attacked",
    "GradCounter",
    "Progress",
    "Result",
    "Shard",
    "Store",
    "class_counts",
    "evaluate",
    "grouped_warnings",
    "pack",
    "parse_attack",
    "unpack",
    "wilson",
]
