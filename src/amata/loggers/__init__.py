"""Experiment trackers as reporters: `amata train --log wandb`, `fit(progress=[True, WandB()])`."""

from amata.loggers.mlflow import MLflow
from amata.loggers.wandb import WandB

__all__ = ["LOGGERS", "MLflow", "WandB"]

LOGGERS = {"wandb": WandB, "mlflow": MLflow}
