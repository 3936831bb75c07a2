"""A recipe's update, refresh of the attack copy and evaluation, compiled by other processes while
this one compiles the attack. Only for built-in networks, methods and data sets: a user's code is
never run there."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amata.ahead import MIN_CORES, expect, may_compile, server, use_folder
from amata.batch import Batch
from amata.cores import cores
from amata.data import find_dataset
from amata.distributed import launched
from amata.engine import FastNet, backend_settings, choose_precision
from amata.engine.compiler import has_compiler
from amata.engine.worth import is_worth, seconds_saved, seconds_taken
from amata.errors import AmataError
from amata.evaluation import evaluate, parse_attack
from amata.evaluation.corruptions import is_attack
from amata.losses import smooth_ce
from amata.methods import METHODS
from amata.models import built_in
from amata.quantity import duration
from amata.recipes import Recipe, load, parse
from amata.recipes.schema import PythonData
from amata.schedules import Control, closed_loop, planned_controls
from amata.training.device import resolve_device
from amata.training.optim import make_optimizer
from amata.training.setup import build_network
from amata.training.sizes import reduced
from amata.training.work import planned_work

MEMORY_SHARE = 0.2
"""The most that each process takes of the GPU's memory."""
MIN_MEMORY = 16e9
"""Bytes of a GPU that has room for them."""
_asked: set[str] = set()
"""Pieces that this process asked for in an earlier run: now it has them, or has compiled them."""


def compile_ahead(
    recipe: Recipe,
    device: torch.device,
    note: Callable[[str], None] = lambda text: None,
    within: float | None = None,
) -> None:
    """Have the recipe compiled, if that helps: not without a GPU, with few cores, for what is not
    built in, or if the code is on disk already. `within` is the time of the run, if given."""
    if device.type != "cuda" or launched() or cores() < MIN_CORES or not suits(recipe):
        return
    folder = use_folder()
    if folder is None or not may_compile():
        return
    missing = {
        name: piece
        for name in COMPILE
        if (piece := _piece(recipe, name)) not in _asked and not (folder / piece).is_file()
    }
    if not missing or not _has_room(device):
        return
    try:
        process = server()
    except OSError:  # no memory for another process
        return
    process.note = note
    if not process.has_recipe:
        process.send({"tables": recipe.tables, "within": within})
    _asked.update(missing.values())
    for name in ("update", "refresh"):
        if name in missing:
            expect(name, process, missing[name])


def pieces(job: dict[str, Any]) -> Iterator[tuple[str, Callable[[], bool], Path, list[str]]]:
    """What to compile for a recipe, in the server: names, work, the files that say that it is done,
    and the names of pieces to wait for. Nothing for a recipe that is wrong or not built in."""
    try:
        recipe = (
            parse(job["tables"], "ahead")
            if "tables" in job
            else load(job["recipe"], job["overrides"], epochs=job.get("epochs"))
        )
        within = job.get("within")
        seconds = None if within is None else duration(within, "within")
    except (AmataError, OSError):  # the first process says what is wrong with it
        return
    folder = use_folder()
    if folder is None or recipe.train.device.startswith("cpu") or not suits(recipe):
        return
    trains = pays(recipe, seconds)
    names = [_piece(recipe, name) for name in COMPILE]
    for name, full in zip(COMPILE, names, strict=True):
        # The first process may wait for a piece that does not pay: it is done at once.
        wanted = trains or name == "evaluation"
        work = partial(_compile, name, recipe) if wanted else lambda: False
        # What is needed last begins last.
        after = names[:-1] if full == names[-1] else []
        yield full, work, folder / full, after
    if "marker" in job:
        yield "command", lambda: True, Path(job["marker"]), names


def _compile(name: str, recipe: Recipe) -> bool:
    """Compile a piece, if the GPU has room for this besides the training."""
    device = resolve_device(recipe.train.device)
    if device.type != "cuda" or not has_compiler() or not _has_room(device):
        return False
    if name != "update":
        os.nice(5)  # what is needed later must not hold up what is needed now
    torch.cuda.set_device(torch.device(device.type, device.index or 0))
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    # cuDNN's choice of algorithms is not kept on disk.
    with backend_settings(benchmark=False, deterministic=recipe.train.deterministic):
        COMPILE[name](recipe, device)
    return True


def _has_room(device: torch.device) -> bool:
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return memory >= MIN_MEMORY


def suits(recipe: Recipe) -> bool:
    """Whether everything in the recipe is built in, and known before the data are loaded."""
    return (
        recipe.train.engine != "plain"
        and recipe.train.compile != "never"
        and built_in(recipe.model.name) is not None
        and not recipe.model.weights
        and type(recipe.method.base) in METHODS.values()
        and recipe.optim.class_weights == "none"
        and not isinstance(recipe.data, PythonData)
        and find_dataset(recipe.data.name).loader is not None
        and not find_dataset(recipe.data.name).framed
    )


def pays(recipe: Recipe, within: float | None = None) -> bool:
    """Whether the first process compiles this recipe at all."""
    if recipe.train.compile == "always" or recipe.train.deterministic:
        return True
    known = find_dataset(recipe.data.name)
    work = planned_work(recipe, known.shape, recipe.data.limit or known.images, within=within)
    model = build_network(recipe, known.shape[0], known.classes)
    return work is None or is_worth(seconds_saved(model, work), seconds_taken(work))


def _piece(recipe: Recipe, name: str) -> str:
    """A name for a piece that is compiled, and for the file that says so: the same for every seed
    and length of a run. It holds no name of a GPU, because asking for that takes a second."""
    tables = {section: dict(table) for section, table in recipe.tables.items()}
    for key in ("seed", "epochs", "keep_epochs", "save_minutes", "tensorboard", "within"):
        tables["train"].pop(key, None)
    of = [torch.__version__, platform.node(), tables["data"]["name"], tables["data"]["batch_size"]]
    sections = ("model", "method", "train", *(["eval"] if name == "evaluation" else []))
    of += [tables[section] for section in sections]
    of += [recipe.optim.label_smoothing, recipe.ball.norm]
    of += [size] if (size := _first_control(recipe).size) else []
    key = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:32]
    return f"{key}-{name}"


def _first_control(recipe: Recipe) -> Control[float]:
    """The control that the update is compiled for."""
    loop = closed_loop(recipe.schedule)
    planned = planned_controls(recipe.schedule, 1) if loop is None else loop.candidates()
    assert planned
    return planned[-1]


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
    _, u = _first_control(recipe).parts()[-1]
    # other sizes of the schedule are compiled when they come
    batch, net.image_size = reduced(Batch(x, y, ids, n), u.size), u.size
    part = batch.parts(recipe.train.accumulate)[0]
    net.part_weight = len(part.x) / n
    rng = torch.Generator(device).manual_seed(0)
    recipe.method.step(net, part, u, rng, {})


def compile_refresh(recipe: Recipe, device: torch.device, *, compiled: bool | None = None) -> None:
    """Compile what copies the weights into the attack copy."""
    _net(recipe, device, compiled).first_refresh()


def compile_evaluation(recipe: Recipe, device: torch.device) -> None:
    """Compile the copy that attacks of the evaluation use."""
    known, c = find_dataset(recipe.data.name), recipe.eval
    attacks = [parse_attack(name) for name in c.attacks if is_attack(name)]
    if not any(attack.perturbs for attack in attacks):
        return
    short = ["pgd-2"]
    short += [] if all(attack.in_ball for attack in attacks) else ["cw-l2-1"]  # not in fp16
    model = build_network(recipe, known.shape[0], known.classes).to(device).eval()
    n = c.batch_size
    images = torch.rand(n, *known.shape), torch.zeros(n, dtype=torch.long)
    options: Any = {"batch_size": n, "precision": c.precision}
    evaluate(model, images, ball=recipe.ball, attacks=short, **options)


COMPILE: dict[str, Callable[[Recipe, torch.device], None]] = {
    "update": compile_update,
    "refresh": compile_refresh,
    "evaluation": compile_evaluation,
}
