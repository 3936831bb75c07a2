"""Amata: adversarial training at a fraction of its usual cost, in PyTorch.

Names are imported when first used, so that `import amata` and `amata --help` cost nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AmataError": "errors",
    "InputError": "errors",
    "L2": "threat",
    "Linf": "threat",
    "Adaptive": "schedules",
    "Constant": "schedules",
    "Control": "schedules",
    "Exponential": "schedules",
    "Linear": "schedules",
    "Piecewise": "schedules",
    "Recipe": "recipes",
    "criterion": "control",
    "evaluate": "evaluation",
    "fit": "training",
}

__all__ = [
    "L2",
    "Adaptive",
    "AmataError",
    "Constant",
    "Control",
    "Exponential",
    "InputError",
    "Linear",
    "Linf",
    "Piecewise",
    "Recipe",
    "__version__",
    "attacks",
    "control",
    "criterion",
    "data",
    "engine",
    "evaluate",
    "evaluation",
    "fit",
    "losses",
    "methods",
    "models",
    "recipes",
    "schedules",
    "seeds",
    "threat",
    "training",
]

if TYPE_CHECKING:
    from amata import (
        attacks,
        control,
        data,
        engine,
        evaluation,
        losses,
        methods,
        models,
        recipes,
        schedules,
        seeds,
        threat,
        training,
    )
    from amata.control import criterion
    from amata.errors import AmataError, InputError
    from amata.evaluation import evaluate
    from amata.recipes import Recipe
    from amata.schedules import Adaptive, Constant, Control, Exponential, Linear, Piecewise
    from amata.threat import L2, Linf
    from amata.training import fit


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"amata.{_HOMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"amata.{name}")
    raise AttributeError(f"module 'amata' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
