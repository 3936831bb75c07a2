"""An experiment by recipe: data, model, training, and the final evaluation on the test set."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from amata import data
from amata.distributed import current, init_distributed, is_main, launched
from amata.errors import InputError, Interrupted, quoted
from amata.evaluation import grouped_warnings
from amata.evaluation.corruptions import is_attack
from amata.recipes import Recipe, recorded
from amata.recipes.schema import PythonData
from amata.reporter import Reporter
from amata.runs import RunFolder, resume_call
from amata.schedules import planned_controls
from amata.training.ahead import compile_ahead
from amata.training.batches import Expected, training_batches
from amata.training.checks import check_consistent, check_divisible, check_equal_ranks
from amata.training.deadline import Deadline
from amata.training.described import check_same, describe_code
from amata.training.device import resolve_device
from amata.training.evaluations import (
    check_attacks,
    corruptions_of,
    evaluate_recipe,
    records_of,
    stored_evaluation,
)
from amata.training.loading import Loading
from amata.training.loop import train_model
from amata.training.prepared import prepare, run_settings
from amata.training.setup import build_model, build_model_for
from amata.training.time_plan import TimePlan
from amata.training.trainer import Trainer
from amata.training.trust import remember, review
from amata.training.wall import WallClock
from amata.training.within import Planned, Within, as_record, describe, plan_run


def train(
    recipe: Recipe,
    out: Path,
    reporter: Reporter | None = None,
    *,
    wall: WallClock | None = None,
    within: Within | None = None,
) -> RunFolder:
    """Run a recipe into a new folder. Input errors are found before the folder is created. The
    recipe is the caller's own: the code that it names is run, and trusted from now on. `wall` is
    the clock of a run that began before this call. `within` is the time from its start to the
    trained model: epochs and schedule are then chosen to fill it, and the folder records them.

    Under torchrun every process calls this, and rank 0 writes. After a failure torchrun restarts
    them with the same command; they then resume an unfinished run of the same recipe.
    """
    recipe, wall = _with_absolute_root(recipe), wall or WallClock()
    if launched() and (out / "recipe.toml").is_file():
        run, begun = RunFolder.open(out)
        if not run.finished and begun.fingerprint() == recipe.fingerprint():
            return _run(recipe, lambda _: run, reporter or Reporter(), wall)
    if is_main():
        RunFolder.check_free(out)
    return _run(
        recipe, lambda r: RunFolder.create(out, r), reporter or Reporter(), wall, within=within
    )


def _with_absolute_root(recipe: Recipe) -> Recipe:
    """The recipe with an absolute data.root: the run is used from other folders too."""
    if recipe.data.root is None:
        return recipe
    root = os.path.abspath(os.path.expanduser(recipe.data.root))
    return replace(recipe, data=recipe.data.model_copy(update={"root": root}))


def resume(
    path: Path,
    overrides: tuple[str, ...] = (),
    reporter: Reporter | None = None,
    *,
    own: Recipe | None = None,
    trust: bool = False,
    wall: WallClock | None = None,
) -> RunFolder:
    """Resume an interrupted run from its newest whole checkpoint; a finished run is left alone.

    `own` is the recipe of a run whose method or schedule was made in Python: it has them. `trust`
    runs the code that the folder's recipe names, and remembers it. The `wall_seconds` of a resumed
    run are those of its last process.
    """
    run, recipe = RunFolder.open(path, overrides)
    if isinstance(recipe.data, PythonData):
        call = resume_call(path, recipe)
        raise InputError(f"{path} was trained in Python, on its own data and model: call {call}")
    reporter = reporter or Reporter()
    made = recorded.own_objects(recipe)
    if own is not None:
        if not made:
            raise InputError(f"{path} needs no recipe to be resumed: it has its own; drop yours")
        whole = recorded.rebuilt(recipe, own)
        check_same(whole, recipe, run)
        recipe = whole
    if run.finished:
        reporter.note(f"{path} is finished already")
        if own is not None:
            for note in run.edited(describe_code(recipe)):
                reporter.note(note)
        return run
    if made and own is None:
        raise InputError(
            f"{path} was trained with a {' and a '.join(made)} of Python, which its recipe cannot "
            f"rebuild; pass the recipe that had it: {resume_call(path, recipe)}"
        )
    review(recipe, path / "recipe.toml", reporter.note, given=overrides, trust=trust)
    return _run(recipe, lambda _: run, reporter, wall or WallClock())


class PlannedRun(NamedTuple):
    """What a run within a given time would do."""

    plan: TimePlan
    evaluation: float | None
    """Seconds of the final evaluation, which comes after the given time; None if not known."""
    wall: dict[str, float]
    """What the seconds before training were spent on."""


def plan(
    recipe: Recipe,
    within: Within,
    reporter: Reporter | None = None,
    *,
    wall: WallClock | None = None,
) -> PlannedRun:
    """Start as `train` does, measure, and plan; nothing is trained or written."""
    recipe, wall = _with_absolute_root(recipe), wall or WallClock()
    ready = _set_up(recipe, reporter or Reporter(), wall, within)
    planned = _plan(ready, recipe, within, wall, reporter or Reporter(), also_attack=True)
    seconds = planned.measured.evaluation(recipe, len(ready.splits.test))
    return PlannedRun(planned.plan, seconds, wall.table())


class _Ready(NamedTuple):
    """A run before its first batch."""

    device: torch.device
    trainer: Trainer | None
    model: nn.Module
    splits: data.Splits


def _set_up(recipe: Recipe, reporter: Reporter, wall: WallClock, within: Within | None) -> _Ready:
    """Data, network and, where it could be compiled meanwhile, the trainer."""
    device = resolve_device(recipe.train.device)
    check_attacks(recipe)
    check_consistent(recipe, planned_controls(recipe.schedule, recipe.train.epochs))
    seconds = within.seconds if within else None
    compile_ahead(recipe, device, reporter.note, seconds)
    loading = Loading(recipe)
    trainer = None
    with suppress(InputError):  # raised again below, after an error of the data
        trainer = _prepared_trainer(recipe, device, reporter, wall, seconds)
    with wall.counting("data"):
        splits = loading.result()
    if splits.skipped:
        files = "1 file" if splits.skipped == 1 else f"{splits.skipped:,} files"
        reporter.note(f"data.skip_bad: leaving out {files} that cannot be used")
    if not all(map(is_attack, recipe.eval.attacks)):
        corruptions_of(recipe, splits.test)
    if trainer is not None and not _fits(trainer, splits.train):
        trainer = None
    if trainer is None:
        model = build_model(recipe, splits.train, trust=True, note=reporter.note)
    else:
        model = trainer.model
    remember(recipe, reporter.note)
    return _Ready(device, trainer, model, splits)


def _plan(
    ready: _Ready,
    recipe: Recipe,
    within: Within,
    wall: WallClock,
    reporter: Reporter,
    *,
    also_attack: bool = False,
) -> Planned:
    """Measure and plan; the trainer is made if there is none."""
    train, valid = ready.splits.train, ready.splits.valid
    with run_settings(recipe, ready.device):
        batches, trainer = training_batches(train, recipe, ready.device), ready.trainer
        if trainer is None:
            trainer = Trainer(ready.model, batches, recipe, ready.device, within.seconds)
            trainer.net.note = reporter.note
        else:
            trainer.use(batches)
        return plan_run(trainer, valid, within, wall, attack_images=train if also_attack else None)


def _run(
    recipe: Recipe,
    folder: Callable[[Recipe], RunFolder],
    reporter: Reporter,
    wall: WallClock,
    *,
    within: Within | None = None,
) -> RunFolder:
    ready = _set_up(recipe, reporter, wall, within)
    splits = ready.splits
    with init_distributed(ready.device, timedelta(minutes=recipe.train.timeout)) as ranks:
        check_equal_ranks(recipe, splits.hashes, ranks)
        check_divisible(recipe, ranks)
        planned = None
        if within is not None:
            planned = _plan(ready, recipe, within, wall, reporter)
            recipe, ready = planned.plan.recipe, ready._replace(trainer=planned.trainer)
            describe(planned.plan, reporter.note)
        run = ranks.broadcast(_prepared(folder, recipe, splits) if ranks.is_main else None)
        assert run is not None
        if planned and ranks.is_main:
            run.record_plan(as_record(planned.plan))
        reporter = reporter if ranks.is_main else Reporter()
        deadline = planned.deadline if planned else None
        _train_and_evaluate(run, recipe, ready, reporter, wall, deadline)
    return run


def _prepared_trainer(
    recipe: Recipe,
    device: torch.device,
    reporter: Reporter,
    wall: WallClock,
    within: float | None,
) -> Trainer | None:
    """The trainer of a data set whose shape and classes are known before it is loaded."""
    c = recipe.data
    if launched() or isinstance(c, PythonData):
        return None
    known = data.find_dataset(c.name)
    if known.loader is None:
        return None
    model = build_model_for(recipe, known.shape, known.classes, device, reporter.note)
    held_out = c.valid if c.valid >= 1 else c.valid * known.images
    count = min(int(known.images - held_out), c.limit or known.images)
    expected = Expected(known.shape, count)
    trainer = prepare(model, recipe, device, expected, reporter.note, within)
    wall.move(trainer.state.spent.compile_seconds, "compile")
    return trainer


def _fits(trainer: Trainer, images: data.ImageSet) -> bool:
    """Whether the data are as they were known before: a copy may be a part of the whole set."""
    recipe = trainer.recipe
    known = data.find_dataset(recipe.data.name)
    return (images.shape, images.classes) == (known.shape, known.classes) and len(
        images
    ) >= recipe.data.batch_size


def _prepared(
    folder: Callable[[Recipe], RunFolder], recipe: Recipe, splits: data.Splits
) -> RunFolder:
    run = folder(recipe)
    run.record_split(recipe.train.seed, splits.record())
    return run


def _train_and_evaluate(
    run: RunFolder,
    recipe: Recipe,
    ready: _Ready,
    reporter: Reporter,
    wall: WallClock,
    deadline: Deadline | None,
) -> None:
    splits = ready.splits
    call = f"`amata train --resume {quoted(run.path)}`"
    try:
        fitted = train_model(
            ready.model,
            splits.train,
            splits.valid,
            recipe,
            run=run,
            reporter=reporter,
            wall=wall,
            trainer=ready.trainer,
            deadline=deadline,
        )
    except Interrupted:
        raise
    except KeyboardInterrupt:  # before the first batch, or twice
        raise Interrupted(f"interrupted; resume with {call}", signal.SIGINT) from None
    if deadline is not None:
        deadline.report(reporter.note)
    again = f"training is done and saved, {call} continues the evaluation"
    device = resolve_device(recipe.train.device)
    store = None
    if current().size == 1:  # several processes have no common state to continue from
        store = stored_evaluation(run.path, recipe, splits, None, device, reporter.note)
    try:
        with wall.counting("evaluate"):
            results = evaluate_recipe(fitted.model, recipe, splits.test, reporter, store=store)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted in the final evaluation; {again}", signal.SIGINT) from None
    except InputError as error:  # such as a test image that cannot be read
        raise InputError(f"{error}; {again}") from None
    for text in grouped_warnings({name: r.warnings for name, r in results.items()}):
        reporter.note(text)
    if current().is_main:
        summary = fitted.summary(recipe, records_of(results), wall)
        run.write_summary(summary)
        reporter.finish(summary)
