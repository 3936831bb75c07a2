"""How long a recipe will train on this device, from a few batches of it."""

import math
import time
from dataclasses import replace

import torch

from amata.attacks import parse_attack
from amata.recipes import Recipe
from amata.schedules import Control, planned_controls
from amata.training.batches import training_batches
from amata.training.device import resolve_device
from amata.training.setup import build_model, load_data
from amata.training.trainer import Trainer
from amata.training.work import epoch_costs

SECONDS = 4.0
"""How long batches are timed."""
BATCHES = 12
"""The most that are timed."""


def estimate(recipe: Recipe) -> float:
    """Seconds for training, validation and the final evaluation.

    The cost of a gradient evaluation is timed, and their number is known: counted for every epoch,
    and images times (K + 1) for an attack of K steps. On a GPU the plain engine is timed, because
    the fast one compiles first: there the estimate is an upper bound.
    """
    device = resolve_device(recipe.train.device)
    on_gpu = device.type == "cuda"
    update = {"in_memory": False, "workers": 0}
    if not on_gpu:  # a large batch may take longer than we want to wait
        update["batch_size"] = min(recipe.data.batch_size, 16)
    timed = replace(
        recipe,
        data=recipe.data.model_copy(update=update),
        train=recipe.train.model_copy(update={"engine": "plain"}),
    )
    splits = load_data(timed)
    model = build_model(timed, splits.train, trust=True)
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        trainer = Trainer(model, training_batches(splits.train, timed, device), timed, device)
        compute, reading = _time_batches(trainer)
    plan = planned_controls(recipe.schedule, recipe.train.epochs) or []
    trained = len(splits.train)
    valid = len(splits.valid) if splits.valid is not None else 0
    tested = min(len(splits.test), recipe.eval.limit or len(splits.test))
    grads = sum(epoch_costs(recipe, plan)) * trained
    grads += len(plan) * valid * (_steps(recipe.train.valid_attack) + 1)
    grads += tested * sum(_steps(name) + 1 for name in recipe.eval.attacks)
    images = len(plan) * (trained + valid) + tested * len(recipe.eval.attacks)
    if recipe.data.in_memory:
        return grads * compute + (trained + valid + tested) * reading
    return max(grads * compute, images * reading / max(1, recipe.data.workers))


def _time_batches(trainer: Trainer) -> tuple[float, float]:
    """Seconds per gradient evaluation of an image, and seconds to read an image."""
    spent, started = trainer.state.spent, time.monotonic()
    seen: list[tuple[float, float, int, int]] = []

    def enough(_: Control[float]) -> bool:
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        trainer.stop_clock()
        trainer.update_account()
        trainer.start_clock()
        seen.append((spent.train_seconds, spent.data_seconds, spent.grad_evals, spent.images))
        return len(seen) > BATCHES or time.monotonic() - started > SECONDS

    trainer.train_epoch(enough)
    # The first batch loads libraries and fills caches.
    first = seen[0] if len(seen) > 1 else (0.0, 0.0, 0, 0)
    seconds, reading, grads, images = (b - a for a, b in zip(first, seen[-1], strict=True))
    return max(seconds - reading, 0.0) / grads, reading / images


def _steps(name: str) -> int:
    """Gradients per image of an attack such as pgd-20 or pgd-50-10; 0 for clean."""
    attack = parse_attack(name)
    return getattr(attack, "steps", 0) * getattr(attack, "restarts", 1)


def in_words(seconds: float) -> str:
    """About 12 minutes."""
    units = (("second", 1, 100), ("minute", 60, 100), ("hour", 3600, 48), ("day", 86400, math.inf))
    unit, size, _ = next(row for row in units if seconds < row[1] * row[2])
    number = max(1, round(seconds / size))
    return f"about {number} {unit}{'s' * (number > 1)}"
