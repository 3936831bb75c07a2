"""amata.fit: train a model with a method and a schedule, in one call."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor, nn

from amata.attacks.checks import check_module
from amata.data import ImageSet, as_images, split_validation
from amata.distributed import current, report_lost_process
from amata.errors import InputError
from amata.evaluation import parse_attack
from amata.methods import ERM, Method
from amata.models import load_weights
from amata.recipes import Recipe, load
from amata.recipes.length import stretched
from amata.recipes.schema import Eval, Optim, PythonData, Train
from amata.reporter import Reporter
from amata.runs import RunFolder, resume_call
from amata.schedules import AnySchedule, Constant, closed_loop
from amata.threat import BALLS, check_ball
from amata.training.batches import training_batches
from amata.training.checks import check_equal_ranks
from amata.training.described import (
    check_same,
    describe_code,
    describe_data,
    describe_model,
    sizes_of,
    updated,
)
from amata.training.device import resolve_device
from amata.training.fitted import Fitted
from amata.training.loop import train_model
from amata.training.prepared import run_settings
from amata.training.time_rule import time_rule
from amata.training.trainer import Trainer
from amata.training.wall import WallClock
from amata.training.within import (
    Planned,
    Within,
    as_record,
    describe,
    plan_run,
    read_within,
)

SHORTEST = (
    'amata.fit(model, (x, y), method=amata.PGD(ball=amata.Linf("8/255")), '
    'schedule=amata.Linear(k_min=2, k_max=10, tau="20/255"), epochs=10)'
)


@torch.inference_mode(False)  # a caller's inference mode would record no gradients
def fit(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    method: Method | None = None,
    schedule: AnySchedule | None = None,
    optim: Optim | None = None,
    epochs: int | None = None,
    within: float | str | None = None,
    batch_size: int | None = None,
    batches_per_epoch: int | None = None,
    augment: Literal["none", "flip", "crop-flip"] | None = None,
    limit: int | None = None,
    class_weights: Sequence[float]
    | Tensor
    | npt.NDArray[Any]
    | Literal["none", "balanced"]
    | None = None,
    workers: int = 0,
    seed: int | None = None,
    device: str | torch.device | None = None,
    engine: Literal["auto", "plain", "fast"] | None = None,
    precision: Literal["auto", "fp32", "bf16"] | None = None,
    valid_attack: str | None = None,
    guard: Literal["rollback", "stop", "ignore"] | None = None,
    recipe: Recipe | str | Path | Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool | Reporter | Sequence[bool | Reporter] = True,
) -> Fitted:
    """Train `model` with `method` under `schedule`.

    `model` maps images in [0, 1], NCHW, to logits, or to an object with `.logits`. It is trained in
    place, and `Fitted.model` holds the best weights: those with the highest robust accuracy on
    `valid`; without `valid`, the last ones.

    `train` and `valid` are pairs (x, y) of tensors or arrays, map-style Datasets (read by `workers`
    processes), or batches: a DataLoader, another iterable, or a function that returns one. A batch
    or an item is (x, y) or a dict. Images are uint8 or floats in [0, 1]. `valid` may also be the
    number or the share of training images to hold out, and `limit` the number to train on; neither
    is possible with batches. `batches_per_epoch` is needed where batches have no len().
    `class_weights` are one weight per class for the loss of the updates, or "balanced".

    `within`, instead of `epochs`, is a time: seconds, or a text such as "5m". A few batches are
    timed, and as many epochs are trained as end within it. `method`, `schedule` and `optim` that
    are passed stay as they are; those of the recipe are stretched, and a linear schedule of it is
    fitted to the time.

    `recipe`, the name of a built-in recipe, a TOML file, a dict of tables or a `Recipe`, fills all
    arguments that are not given, but not `valid`. `epochs` stretches it, as in `recipes.load`.
    `run` is a new folder in which everything is
    recorded. An interrupt then saves a checkpoint, and `fit(model, train, valid, resume=FOLDER)`
    resumes it with the recorded settings.
    `progress` draws a bar with the time left, or writes lines to a log; False is silent. A
    `Reporter` receives callbacks instead, and a list such as [True, amata.WandB()] does both.
    """
    wall = WallClock()
    from amata.console import reporting  # imports rich, which `import amata` does not need

    if resume is not None and (run is not None or recipe is not None):
        raise InputError("resume= takes settings and folder from the run; drop run= and recipe=")
    if within is not None and (epochs is not None or resume is not None):
        raise InputError("within= chooses the epochs; drop epochs= and resume=, or within=")
    time = read_within(within)
    if time is not None:
        passed = {"method": method, "schedule": schedule, "optim": optim}
        keep = frozenset(name for name, own in passed.items() if own is not None)
        time = time._replace(keep_schedule=schedule is not None, keep=keep)
    _check_types(model, method, schedule, optim, {"recipe": recipe, "run": run, "resume": resume})
    reporter = reporting(progress, "fit()")
    folder, base = None, load(recipe) if isinstance(recipe, str | Path | Mapping) else recipe
    if resume is not None:
        folder, base = RunFolder.open(Path(resume).expanduser())
        if not isinstance(base.data, PythonData):
            raise InputError(
                f"{resume} was trained by a recipe; resume it with {resume_call(folder.path, base)}"
            )
    elif base is not None and epochs is not None:
        base = stretched(base, epochs)
    chosen = _recipe(base, method, schedule, model)
    images, held_out = _read_data(train, valid, workers)
    if not isinstance(images, ImageSet) and (batch_size or augment or limit):
        raise InputError(
            "batch_size=, augment= and limit= are for single images; this iterable makes its own "
            "batches: drop them"
        )
    if isinstance(images, ImageSet) and batches_per_epoch is not None:
        raise InputError("batches_per_epoch= is for iterables of batches; drop it")
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "augment": augment,
        "limit": limit,
        "valid": 0,
    }
    if augment == "none":  # nothing of a recipe's augmentation is left
        given |= {"flip": "random", "cutout": 0.0}
    data = updated(chosen.data, given)
    if time is not None and base is None:
        epochs = time_rule().most_epochs  # until the plan says how many
    options = {
        "epochs": epochs,
        "seed": seed,
        "device": None if device is None else str(device),
        "engine": engine,
        "precision": precision,
        "valid_attack": valid_attack,
        "guard": guard,
    }
    settings = updated(chosen.train, options)
    if isinstance(images, ImageSet):
        share = _count_or_share(valid)
        images, part, _ = split_validation(images, share, settings.seed, data.limit)
        held_out = part if share else held_out
    chosen = dataclasses.replace(
        chosen,
        optim=updated(optim or chosen.optim, {"class_weights": class_weights}),
        train=settings,
        data=describe_data(images, held_out, data, batches_per_epoch),
        model=describe_model(model, chosen.model.first_layer),
    )
    _ = chosen.tables  # validates the fields of method and schedule
    with report_lost_process():
        ranks = current(timedelta(minutes=chosen.train.timeout))
        # A stream may have its own part of the data on every process.
        own = {"count": None} if not isinstance(images, ImageSet) else {}
        check_equal_ranks(chosen, {**own, "has a validation set": valid is not None}, ranks)
    planned = None
    if time is not None:
        planned = _plan(model, images, held_out, chosen, time, wall, reporter)
        chosen = planned.plan.recipe
        describe(planned.plan, reporter.note)
    if folder is not None and base is not None:
        check_same(chosen, base, folder)
        if folder.finished:
            reporter.note(f"{folder.path} is finished already")
            for note in folder.edited(describe_code(chosen, model)):
                reporter.note(note)
            return _finished(folder, model)
    elif run is not None:
        path = Path(run).expanduser()
        chosen = dataclasses.replace(chosen, name=path.name)
        folder = _new_folder(path, chosen, images)
        if planned and folder is not None:
            folder.record_plan(as_record(planned.plan))
    try:
        with reporter:
            fitted = train_model(
                model,
                images,
                held_out,
                chosen,
                run=folder,
                reporter=reporter,
                wall=wall,
                trainer=planned.trainer if planned else None,
                deadline=planned.deadline if planned else None,
            )
            if ranks.is_main:
                summary = fitted.summary(chosen, {}, wall)
                if folder is not None:
                    folder.write_summary(summary)
                reporter.finish(summary)
    except InputError:
        if run is not None and folder is not None:
            folder.remove_if_untrained()
        raise
    return fitted


def _plan(
    model: nn.Module,
    images: Any,
    valid: Any,
    recipe: Recipe,
    within: Within,
    wall: WallClock,
    reporter: Reporter,
) -> Planned:
    """Measure this training, and plan it."""
    device = resolve_device(recipe.train.device, "device", "device='cpu'")
    with run_settings(recipe, device):
        batches = training_batches(images, recipe, device)
        trainer = Trainer(model, batches, recipe, device, within.seconds)
        trainer.net.note = reporter.note
        return plan_run(trainer, valid, within, wall)


def _read_data(train: Any, valid: Any, workers: int) -> tuple[Any, Any]:
    """Training and validation data as image sets or iterables; None for a part of the former."""
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise InputError(f"fit(): workers = {workers!r} must be a whole number of at least 0")
    images = as_images(train, workers=workers, where="training data")
    if valid is None or isinstance(valid, int | float):
        if valid is not None and not isinstance(images, ImageSet):
            raise InputError(
                f"valid = {valid!r} holds out single images, and the training data are batches; "
                "pass the validation data themselves"
            )
        return images, None
    return images, as_images(valid, workers=workers, where="validation data")


def _count_or_share(valid: Any) -> float:
    """The number or the share of images to hold out; 0 if `valid` are the images themselves."""
    if valid is None or not isinstance(valid, int | float):
        return 0
    share: float = updated(PythonData(), {"valid": valid}).valid
    return share


def _new_folder(path: Path, recipe: Recipe, images: Any) -> RunFolder | None:
    """A new run folder, created after everything that can be checked without training. It records
    the classes and the shape of the images, which the weights then hold too."""
    parse_attack(recipe.train.valid_attack)
    resolve_device(recipe.train.device, "device", "device='cpu'")
    if type(recipe.ball) not in BALLS.values():
        raise InputError(f"run= cannot record the ball {recipe.ball!r}; use amata.Linf or amata.L2")
    if not current().is_main:
        return None
    folder, record = RunFolder.create(path, recipe), sizes_of(images)
    if record:
        folder.record_split(recipe.train.seed, record)
    return folder


def _check_types(
    model: Any, method: Any, schedule: Any, optim: Any, paths: Mapping[str, Any]
) -> None:
    """Refuse what is not the kind of object that an argument needs."""
    function = "or a function (epoch, epochs) -> (steps, step_size)"
    is_schedule = callable(schedule) or closed_loop(schedule) is not None
    is_schedule = is_schedule and not isinstance(schedule, type)
    check_module(model)
    needs = {
        "method": (method, isinstance(method, Method), "a method such as amata.PGD(ball=ball)"),
        "schedule": (schedule, is_schedule, f"a schedule such as amata.Linear(...), {function}"),
        "optim": (optim, isinstance(optim, Optim), "amata.SGD(...), AdamW(...) or Muon(...)"),
    }
    for name, path in paths.items():
        right = isinstance(path, str | Path) and "\0" not in str(path)  # no path has a null byte
        right = right or (name == "recipe" and isinstance(path, Recipe | Mapping))
        wanted = "the name of a recipe, a TOML file, a dict of tables or an amata.Recipe"
        needs[name] = (path, right, wanted if name == "recipe" else "a folder")
    for name, (value, right, wanted) in needs.items():
        if not right and value is not None:
            text = repr(value)
            short = text if len(text) <= 80 and text.isprintable() else type(value).__name__
            raise InputError(f"fit(): {name} = {short} must be {wanted}")
    if isinstance(method, Method):
        check_ball(method.ball)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError(
            f"model is a {type(model).__name__}; pass model.module: for several GPUs start the "
            "script with torchrun"
        )
    if hasattr(model, "_orig_mod"):
        raise InputError(
            "model is compiled; pass the module itself, model._orig_mod: the fast engine compiles "
            "it"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("fit(): no parameter of the model requires a gradient; unfreeze some")


def _recipe(
    base: Recipe | None, method: Method | None, schedule: AnySchedule | None, model: nn.Module
) -> Recipe:
    """The base recipe, or the default one, with the given method and schedule."""
    if base is None:
        if method is not None and isinstance(method.base, ERM) and schedule is None:
            schedule = Constant(steps=0, step_size=0.0)  # clean training has no attack to schedule
        if method is None or schedule is None:
            raise InputError(f"fit() needs method= and schedule=, or recipe=, as in {SHORTEST}")
        name, network = type(method).__name__.lower(), describe_model(model, None)
        settings = Optim(), Train(), Eval()
        return Recipe(name, PythonData(), network, method, schedule, *settings)
    return dataclasses.replace(
        base, method=method or base.method, schedule=schedule or base.schedule
    )


def _finished(folder: RunFolder, model: nn.Module) -> Fitted:
    """A run that has ended, read back, with its best weights in the model."""
    load_weights(model, folder.path / "model.safetensors")
    summary = folder.summary()
    return Fitted(
        model.eval(),
        folder.epochs(),
        folder.events(),
        summary["best_epoch"],
        summary["train_seconds"],
        summary["grad_evals"],
        round(summary["grad_evals"] / summary["grad_evals_per_image"]),
    )
