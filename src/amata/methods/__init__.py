"""Training methods, one file each. To add one: write its file, give it a name here, a recipe and a row in tests/test_methods.py."""

from amata.methods.contract import Memory, Method, Net
from amata.methods.erm import ERM
from amata.methods.pgd import PGD

METHODS: dict[str, type] = {"erm": ERM, "pgd": PGD}

__all__ = ["ERM", "METHODS", "PGD", "Memory", "Method", "Net"]
