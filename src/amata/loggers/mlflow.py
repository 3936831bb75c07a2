"""MLflow: one of its runs for each training."""

import os
import re
from collections.abc import Mapping
from typing import Any, Self

from amata.errors import InputError, missing, shorten
from amata.metrics import EpochRow, scalars, totals
from amata.reporter import Reporter


class MLflow(Reporter):
    """Logs recipe, epochs and summary. MLflow's own variables apply, such as
    MLFLOW_TRACKING_URI."""

    def __init__(self, experiment: str | None = None) -> None:
        try:
            import mlflow
        except ImportError:
            raise missing("mlflow", "logging to MLflow", "mlflow") from None
        self.mlflow, self.active = mlflow, False
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "amata")

    def __enter__(self) -> Self:
        try:
            self.mlflow.set_experiment(self.experiment)
        except self.mlflow.MlflowException as error:
            raise InputError(f"mlflow: {shorten(error)}; set MLFLOW_TRACKING_URI") from None
        return self

    def start(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.__exit__()
        self.mlflow.start_run(run_name=name, nested=self.mlflow.active_run() is not None)
        self.active = True
        keys = {f"{table}.{key}": v for table, rows in tables.items() for key, v in rows.items()}
        self.mlflow.log_params({key: str(value)[:500] for key, value in keys.items()})

    def _log(self, numbers: Mapping[str, float], step: int | None = None) -> None:
        # its names may not hold @, as in autoattack@1000
        named = {re.sub(r"[^\w/. -]", "_", name): value for name, value in numbers.items()}
        self.mlflow.log_metrics(named, step=step)

    def epoch(self, row: EpochRow) -> None:
        self._log(scalars(row), row["epoch"] + 1)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._log(totals(summary))
        self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self.active:
            self.mlflow.end_run("FAILED" if any(error) else "FINISHED")
            self.active = False
