"""Training: epochs, learning rates, EMA weights, validation, checkpoints, the collapse guard."""

from amata.training.device import resolve_device
from amata.training.interrupt import Interrupted
from amata.training.loop import Fitted, fit

__all__ = ["Fitted", "Interrupted", "fit", "resolve_device"]
