"""Training: epochs, learning rates, EMA weights, validation, checkpoints, the collapse guard."""

from amata.errors import Interrupted
from amata.training.by_recipe import train
from amata.training.device import resolve_device
from amata.training.fitted import Fitted
from amata.training.fitting import fit
from amata.training.loaded import load
from amata.training.loop import train_model

__all__ = ["Fitted", "Interrupted", "fit", "load", "resolve_device", "train", "train_model"]
