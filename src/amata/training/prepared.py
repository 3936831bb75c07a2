"""What a training needs before its first batch: backend settings, and a compiled step."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from amata.distributed import report_lost_process
from amata.engine import backend_settings
from amata.recipes import Recipe
from amata.training.batches import Expected
from amata.training.trainer import Trainer


def prepare(
    model: nn.Module,
    recipe: Recipe,
    device: torch.device,
    expected: Expected,
    note: Callable[[str], None],
    within: float | None = None,
) -> Trainer:
    """The trainer of a model, its step compiled, while the data load; of a run `within` a time, if
    given."""
    with run_settings(recipe, device):
        trainer = Trainer(model, expected, recipe, device, within)
        trainer.net.note = note
        trainer.warm_up(expected)
    return trainer


@contextlib.contextmanager
def run_settings(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """A random state of its own, the recipe's backend settings, and one line for lost processes."""
    on_gpu, fixed = device.type == "cuda", recipe.train.deterministic
    backends = (
        backend_settings(benchmark=not fixed, deterministic=fixed)
        if on_gpu
        else contextlib.nullcontext()
    )
    own_rng = torch.random.fork_rng(devices=[device] if on_gpu else [])
    with own_rng, backends, report_lost_process():
        yield
