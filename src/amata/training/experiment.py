"""An experiment by recipe: data, model, training, and the final evaluation on the test set."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from torch import nn

from amata import data
from amata.distributed import current, init_distributed, is_main, launched
from amata.errors import InputError, Interrupted, quoted
from amata.evaluation import grouped_warnings
from amata.evaluation.corruptions import is_attack
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.reporter import Reporter
from amata.runs import RunFolder, resume_call
from amata.schedules import planned_controls
from amata.training.ahead import compile_ahead
from amata.training.checks import check_consistent, check_divisible, check_equal_ranks
from amata.training.device import resolve_device
from amata.training.evaluations import (
    check_attacks,
    corruptions_of,
    evaluate_recipe,
    records_of,
    stored_evaluation,
)
from amata.training.loop import train_model
from amata.training.setup import build_model, load_data
from amata.training.trust import remember, review


def train(recipe: Recipe, out: Path, reporter: Reporter | None = None) -> RunFolder:
    """Run a recipe into a new folder. Input errors are found before the folder is created. The
    recipe is the caller's own: the code that it names is run, and trusted from now on.

    Under torchrun every process calls this, and rank 0 writes. After a failure torchrun restarts
    them with the same command; they then resume an unfinished run of the same recipe.
    """
    recipe = _with_absolute_root(recipe)
    if launched() and (out / "recipe.toml").is_file():
        run, begun = RunFolder.open(out)
        if not run.finished and begun.fingerprint() == recipe.fingerprint():
            return _run(recipe, lambda: run, reporter or Reporter())
    if is_main():
        RunFolder.check_free(out)
    return _run(recipe, lambda: RunFolder.create(out, recipe), reporter or Reporter())


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
    trust: bool = False,
) -> RunFolder:
    """Resume an interrupted run from its newest whole checkpoint; a finished run is left alone.

    `trust` runs the code that the folder's recipe names, and remembers it.
    """
    run, recipe = RunFolder.open(path, overrides)
    if isinstance(recipe.data, PythonData):
        call = resume_call(path, recipe)
        raise InputError(f"{path} was trained in Python, on its own data and model: call {call}")
    reporter = reporter or Reporter()
    if run.finished:
        reporter.note(f"{path} is finished already")
        return run
    review(recipe, path / "recipe.toml", reporter.note, given=overrides, trust=trust)
    return _run(recipe, lambda: run, reporter)


def _run(recipe: Recipe, folder: Callable[[], RunFolder], reporter: Reporter) -> RunFolder:
    device = resolve_device(recipe.train.device)
    check_attacks(recipe)
    check_consistent(recipe, planned_controls(recipe.schedule, recipe.train.epochs))
    compile_ahead(recipe, device)
    splits = load_data(recipe)
    if splits.skipped:
        files = "1 file" if splits.skipped == 1 else f"{splits.skipped:,} files"
        reporter.note(f"data.skip_bad: leaving out {files} that cannot be used")
    if not all(map(is_attack, recipe.eval.attacks)):
        corruptions_of(recipe, splits.test)
    model = build_model(recipe, splits.train, trust=True, note=reporter.note)
    remember(recipe, reporter.note)
    with init_distributed(device, timedelta(minutes=recipe.train.timeout)) as ranks:
        check_equal_ranks(recipe, splits.hashes, ranks)
        check_divisible(recipe, ranks)
        run = ranks.broadcast(_prepared(folder, recipe, splits) if ranks.is_main else None)
        assert run is not None
        _train_and_evaluate(run, recipe, model, splits, reporter if ranks.is_main else Reporter())
    return run


def _prepared(folder: Callable[[], RunFolder], recipe: Recipe, splits: data.Splits) -> RunFolder:
    run = folder()
    run.record_split(recipe.train.seed, splits.record())
    return run


def _train_and_evaluate(
    run: RunFolder, recipe: Recipe, model: nn.Module, splits: data.Splits, reporter: Reporter
) -> None:
    call = f"`amata train --resume {quoted(run.path)}`"
    try:
        fitted = train_model(model, splits.train, splits.valid, recipe, run=run, reporter=reporter)
    except Interrupted:
        raise
    except KeyboardInterrupt:  # before the first batch, or twice
        raise Interrupted(f"interrupted; resume with {call}", signal.SIGINT) from None
    again = f"training is done and saved, {call} continues the evaluation"
    device = resolve_device(recipe.train.device)
    store = None
    if current().size == 1:  # several processes have no common state to continue from
        store = stored_evaluation(run.path, recipe, splits, None, device, reporter.note)
    try:
        results = evaluate_recipe(fitted.model, recipe, splits.test, reporter, store=store)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted in the final evaluation; {again}", signal.SIGINT) from None
    except InputError as error:  # such as a test image that cannot be read
        raise InputError(f"{error}; {again}") from None
    for text in grouped_warnings({name: r.warnings for name, r in results.items()}):
        reporter.note(text)
    if current().is_main:
        summary = fitted.summary(recipe, records_of(results))
        run.write_summary(summary)
        reporter.finish(summary)
