"""The weights of a run after its epochs, which train.keep_epochs saves, and how steep the loss
around test images is with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata.errors import InputError
from amata.evaluation.steepness import Steepness, steepness
from amata.models import load_state
from amata.runs import RunFolder
from amata.runs.files import under
from amata.tensors import read_tensors
from amata.threat import Ball
from amata.training.loaded import load_trained

CHUNK = 500
"""Images per gradient evaluation."""


def epoch_weights(run: RunFolder, epoch: int, epochs: int) -> Path:
    """The file with the weights after an epoch, from 1, of a run of so many epochs."""
    if not 1 <= epoch <= epochs:
        raise InputError(f"--epochs {epoch} is not one of the run's {epochs} epochs")
    if not run.epoch_file(epoch).is_file():
        raise InputError(
            f"{run.path} has no saved epochs; train it again with --set train.keep_epochs=true, or "
            "drop --epochs"
        )
    return run.epoch_file(epoch)


def load_epoch(model: nn.Module, file: Path) -> None:
    """Load the EMA weights if there are any: evaluation uses them."""
    state = read_tensors(file)
    load_state(model, under(state, "ema/") or under(state, "model/"), file)


def mean_steepness(model: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> dict[str, float]:
    """The means over the images."""
    parts = [
        steepness(model, *part, ball) for part in zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    ]
    means = (float(torch.cat(column).mean()) for column in zip(*parts, strict=True))
    return dict(zip(Steepness._fields, means, strict=True))


def run_steepness(
    path: Path, epochs: Sequence[int] = (), images: int = 1000
) -> list[dict[str, float]]:
    """The steepness of a run's loss around its first test images after the given epochs, from 1; by
    default after every epoch. One row per epoch, with the number of images."""
    run = RunFolder.open(path)[0]
    last = len({row["epoch"] for row in run.epochs()})
    files = {epoch: epoch_weights(run, epoch, last) for epoch in epochs or range(1, last + 1)}
    model, recipe, splits = load_trained(path, (), to_test=True)
    chosen = torch.arange(min(images, len(splits.test)))
    device = next(model.parameters()).device
    x, y = next(iter(splits.test.read([chosen], device, None)))
    rows: list[dict[str, Any]] = []
    for epoch, file in files.items():
        load_epoch(model, file)
        found = mean_steepness(model, x, y, recipe.ball)
        rows.append({"epoch": epoch, "images": len(x), **found})
    return rows
