"""Weights & Biases: one of its runs for each training."""

import os
from collections.abc import Mapping
from typing import Any, Self

from amata.errors import InputError, missing, shorten
from amata.metrics import EpochRow, scalars, totals
from amata.reporter import Reporter


class WandB(Reporter):
    """Logs recipe, epochs and summary. wandb's own variables apply, such as WANDB_MODE=offline."""

    def __init__(self, project: str | None = None) -> None:
        try:
            import wandb
        except ImportError:
            raise missing("wandb", "logging to Weights & Biases", "wandb") from None
        self.wandb = wandb
        self.active: Any = None
        self.project = project or os.environ.get("WANDB_PROJECT", "amata")

    def __enter__(self) -> Self:
        try:
            if os.environ.get("WANDB_MODE", "online") == "online":
                self.wandb.login()
        except self.wandb.Error as error:
            raise InputError(f"wandb: {shorten(error)} Or set WANDB_MODE=offline") from None
        return self

    def start(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self.__exit__()
        self.active = self.wandb.init(project=self.project, name=name, config=dict(tables))

    def epoch(self, row: EpochRow) -> None:
        self.active.log(scalars(row), step=row["epoch"] + 1)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.active.summary.update(totals(summary))
        self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self.active is not None:
            self.active.finish(exit_code=1 if any(error) else 0)
            self.active = None
