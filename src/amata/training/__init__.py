"""Training by a recipe: epochs, rates, weight average, validation, checkpoints, guards."""

from amata.training.device import resolve_device
from amata.training.fit import Fitted, fit
from amata.training.interrupt import Interrupted
from amata.training.reporter import Moment, Reporter
from amata.training.run import RunFolder

__all__ = ["Fitted", "Interrupted", "Moment", "Reporter", "RunFolder", "fit", "resolve_device"]
