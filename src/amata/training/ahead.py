"""Compile a recipe's update in a second process, and the refresh of the attack copy and the
evaluation in a third, while the first one compiles the attack. Only for built-in networks, methods
and data sets: they never run a user's code."""

import hashlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amata.batch import Batch
from amata.data import find_dataset
from amata.distributed import launched
from amata.engine import FastNet, ahead, backend_settings, choose_precision
from amata.engine.compiler import has_compiler, keep_on_disk, may_compile
from amata.engine.worth import choose, seconds_saved
from amata.evaluation import evaluate
from amata.evaluation.corruptions import is_attack
from amata.losses import smooth_ce
from amata.methods import METHODS
from amata.models import MODELS
from amata.recipes import Recipe, parse
from amata.recipes.schema import PythonData
from amata.schedules import closed_loop, planned_controls
from amata.training.device import resolve_device
from amata.training.optim import make_optimizer
from amata.training.setup import build_network
from amata.training.work import planned_work

PROCESSES = (("update",), ("refresh", "evaluation"))
"""The pieces that each process compiles."""
MEMORY_SHARE = 0.25
"""The most that each process takes of the GPU's memory."""


def compile_ahead(
    recipe: Recipe, device: torch.device, note: Callable[[str], None] = lambda text: None
) -> list[ahead.Helper]:
    """Start the processes that help: none without a GPU, with few cores, for what is not built in,
    or if the code is on disk already."""
    if device.type != "cuda" or launched() or ahead.cores() < ahead.MIN_CORES or not suits(recipe):
        return []
    if not may_compile():
        return []
    keep_on_disk()
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder is None:
        return []
    key = _key(recipe, f"{platform.node()} {device}")  # asking for the GPU's name takes a second
    threads = max(ahead.cores() // 2, 2)
    helpers = list[ahead.Helper]()
    for pieces in PROCESSES:
        marker = Path(folder) / "amata" / f"{key}-{pieces[0]}"
        if marker.is_file():
            continue
        try:
            helper = ahead.Helper("amata.training.ahead", threads=threads, note=note)
        except OSError:  # no memory for another process
            return helpers
        work = {"tables": recipe.tables, "device": str(device), "pieces": pieces}
        first = str(Path(folder) / "amata" / f"{key}-update")
        helper.send(json.dumps({**work, "marker": str(marker), "first": first}))
        for piece in pieces:
            ahead.expect(piece, helper)
        helpers.append(helper)
    return helpers


def suits(recipe: Recipe) -> bool:
    """Whether everything in the recipe is built in, and known before the data are loaded."""
    return (
        recipe.train.engine != "plain"
        and recipe.train.compile != "never"
        and recipe.model.name in MODELS
        and not recipe.model.weights
        and type(recipe.method) in METHODS.values()
        and recipe.optim.class_weights == "none"
        and not isinstance(recipe.data, PythonData)
        and find_dataset(recipe.data.name).loader is not None
        and not find_dataset(recipe.data.name).framed
    )


def pays(recipe: Recipe) -> bool:
    """Whether the first process compiles this recipe at all."""
    if recipe.train.compile == "always" or recipe.train.deterministic:
        return True
    known = find_dataset(recipe.data.name)
    work = planned_work(recipe, known.shape, recipe.data.limit or known.images)
    model = build_network(recipe, known.shape[0], known.classes)
    return work is None or choose("auto", seconds_saved(model, work), on_disk=False)[0]


def _key(recipe: Recipe, device: str) -> str:
    """A name for what is compiled: the same for every seed and length of a run."""
    tables = {section: dict(table) for section, table in recipe.tables.items()}
    for key in ("seed", "epochs", "device", "keep_epochs", "save_minutes", "tensorboard"):
        tables["train"].pop(key, None)
    of = [torch.__version__, device, tables["data"]["name"], tables["data"]["batch_size"]]
    of += [tables[section] for section in ("model", "method", "train", "eval")]
    of += [recipe.optim.label_smoothing, recipe.ball.norm]
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:32]


class UpdateNet(FastNet):
    """Compiles updates only: attacks return where they started, and no weight changes."""

    def _ascent(self, region: Any, x: Tensor, *options: Any) -> Tensor:
        return x

    def _input_grad(self, x: Tensor, y: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x), self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return self._forward(x)

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=not self.graphed)


def _net(recipe: Recipe, device: torch.device, compiled: bool | None) -> UpdateNet:
    known = find_dataset(recipe.data.name)
    model = build_network(recipe, known.shape[0], known.classes).to(device).train()
    return UpdateNet(
        model,
        make_optimizer(model, recipe.optim, known.shape),
        precision=choose_precision(recipe.train.precision, device.type == "cuda", True),
        loss=smooth_ce(recipe.optim.label_smoothing),
        attack_mode=recipe.train.attack_mode,
        first_layer=recipe.model.first_layer,
        compiled=compiled,
    )


def compile_update(recipe: Recipe, device: torch.device, *, compiled: bool | None = None) -> None:
    """Compile what the recipe's method does to the weights, on random images."""
    net, shape = _net(recipe, device, compiled), find_dataset(recipe.data.name).shape
    n = recipe.data.batch_size
    x, y = torch.rand(n, *shape, device=device), torch.zeros(n, dtype=torch.long).to(device)
    ids = torch.arange(n, device=device)
    part = Batch(x, y, ids, n).parts(recipe.train.accumulate)[0]
    net.part_weight = len(part.x) / n
    loop = closed_loop(recipe.schedule)
    plan = planned_controls(recipe.schedule, 1) if loop is None else loop.candidates()
    assert plan
    rng = torch.Generator(device).manual_seed(0)
    recipe.method.step(net, part, plan[-1], rng, {})


def compile_refresh(recipe: Recipe, device: torch.device, *, compiled: bool | None = None) -> None:
    """Compile what copies the weights into the attack copy."""
    _net(recipe, device, compiled).first_refresh()


def compile_evaluation(recipe: Recipe, device: torch.device) -> None:
    """Compile the copy that attacks of the evaluation use."""
    known, c = find_dataset(recipe.data.name), recipe.eval
    if not any(is_attack(name) and name != "clean" for name in c.attacks):
        return
    model = build_network(recipe, known.shape[0], known.classes).to(device).eval()
    n = c.batch_size
    images = torch.rand(n, *known.shape), torch.zeros(n, dtype=torch.long)
    options: Any = {"batch_size": n, "precision": c.precision}
    evaluate(model, images, ball=recipe.ball, attacks=["pgd-2"], **options)


COMPILE = {
    "update": compile_update,
    "refresh": compile_refresh,
    "evaluation": compile_evaluation,
}


def _wait_for(marker: Path) -> None:
    """Wait until another process has created this file, but not for ever."""
    for _ in range(200):
        if marker.is_file():
            return
        time.sleep(0.2)


def main() -> None:
    """Another process: the description of its work is the first line of its input."""
    described = json.loads(sys.stdin.readline())

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    recipe = parse(described["tables"], "ahead")
    device = resolve_device(described["device"])
    if not suits(recipe) or device.type != "cuda" or not has_compiler() or not pays(recipe):
        return
    if "update" not in described["pieces"]:
        os.nice(5)  # what is needed later must not hold up what is needed now
    torch.cuda.set_device(torch.device(device.type, device.index or 0))
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    for piece in described["pieces"]:
        if piece == "evaluation":  # it is needed last
            _wait_for(Path(described["first"]))
        # cuDNN's choice of algorithms is not kept on disk.
        with backend_settings(benchmark=False, deterministic=recipe.train.deterministic):
            COMPILE[piece](recipe, device)
        print(piece, flush=True)
    marker = Path(described["marker"])
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


if __name__ == "__main__":
    main()
