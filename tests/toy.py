"""A small task, recipes that train on it in a second, and what tests of training share."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata import recipes
from amata.distributed import current
from amata.metrics import EpochRow
from amata.recipes import Recipe
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.seeds import generator
from amata.training import Fitted, train_model

# A run of a few seconds that exercises everything that could break a resume: momentum, average,
# BatchNorm, dropout, augmentation.
QUICK = [
    "train.device=cpu",
    "optim.name=sgd",
    "optim.lr=0.05",
    "train.epochs=3",
    "model.name=tests.conftest:dropout_net",
    "data.valid=40",
    "data.batch_size=100",
    "data.augment=crop-flip",
    "data.pad=2",
    "schedule.k_max=3",
    "optim.ema=0.9",
    "train.valid_attack=pgd-2",
    'eval.attacks=["clean"]',
    "eval.limit=50",
    "train.tensorboard=false",
]


def toy_data(n: int = 96) -> tuple[Tensor, Tensor]:
    """Two classes that differ in brightness."""
    y = torch.arange(n) % 2
    noise = 0.2 * torch.rand(n, 1, 6, 6, generator=generator(n))
    return (0.2 + 0.4 * y.view(-1, 1, 1, 1) + noise), y


def toy_recipe(*more: str) -> Recipe:
    base = [
        "train.device=cpu",
        "optim.name=sgd",
        "threat.eps=0.05",
        "schedule.tau=0.1",
        "schedule.k_max=3",
        "train.epochs=4",
        "data.batch_size=16",
        "optim.lr=0.02",
    ]
    return recipes.load("mnist5k-amata", [*base, *more])


def fit(
    model: nn.Module,
    train: Any,
    valid: Any,
    recipe: Recipe,
    *,
    run: RunFolder | Path | None = None,
    reporter: Reporter | None = None,
) -> Fitted:
    """The training loop under a recipe, recorded in a new folder or in an open one."""
    if isinstance(run, Path) and current().is_main:
        run = RunFolder.create(run, recipe)
    elif isinstance(run, Path):
        run = None
    return train_model(model, train, valid, recipe, run=run, reporter=reporter)


class Notes(Reporter):
    """Keeps the notes of a training."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class StopAt(Reporter):
    """Sends this process a signal at one batch of training."""

    def __init__(self, epoch: int, batch: int, number: int = signal.SIGTERM) -> None:
        self.at, self.number = (epoch, batch), number

    def batch(self, info: BatchInfo) -> None:
        if (info.epoch, info.batch) == self.at:
            os.kill(os.getpid(), self.number)


STATEFUL = {
    "free": ("method.name=free", "schedule.k_min=2"),
    "fast": (
        "method.name=fast",
        "method.init=previous",
        "schedule.name=constant",
        "schedule.steps=1",
        "schedule.step_size=0.06",
    ),
    "atta": ("method.name=atta", "method.reset=2", "schedule.k_max=2"),
    "atta on the CPU": ("method.name=atta", "method.store=cpu"),
    "fgsm-pgi": ("method.name=fgsm-pgi", "method.reset=2", "schedule.k_max=2"),
    "dat": ("method.name=dat", "method.dynamic_epochs=3"),
    "yopo": ("method.name=yopo", "method.inner=2", "model.first_layer='0'"),
}


def stateful_recipe(name: str, *more: str) -> Recipe:
    options = (*STATEFUL[name], *more)
    base = {"data.augment": "crop-flip", "data.pad": "1", "train.tensorboard": "false"}
    if "schedule.name=constant" not in options:
        return toy_recipe(*[f"{k}={v}" for k, v in base.items()], *options)
    common = [
        "train.device=cpu",
        "threat.eps=0.05",
        "train.epochs=4",
        "data.batch_size=4",
        "optim.name=adamw",
        "optim.lr=0.003",
    ]
    return recipes.load("mnist5k-pgd", [*common, *[f"{k}={v}" for k, v in base.items()], *options])


def without_times(row: EpochRow) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.endswith("_seconds")}


def newest(run: Path) -> str:
    return max((p.name for p in (run / "checkpoints").glob("[0-9]*.json")), default="")
