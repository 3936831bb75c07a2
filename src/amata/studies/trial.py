"""One trial of a search: train a schedule in its own folder, or resume it, and score it."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from amata.data import Splits
from amata.errors import missing, quoted
from amata.metrics import Amount, Finite, Index, Share
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import read_record, write_record
from amata.studies.criterion import CriterionSettings, measure_strategies
from amata.studies.pruning import PruningReporter
from amata.training import train_model
from amata.training.batches import training_batches
from amata.training.loop import BudgetSpent
from amata.training.setup import build_model
from amata.training.trust import remember
from amata.training.wall import WallClock

try:
    import optuna
except ImportError:
    raise missing("optuna", "amata search", "search") from None


@dataclass(frozen=True)
class TrialResult:
    """The contents of a trial's result.json."""

    trial: int
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    accuracy: float
    """The best held-out robust accuracy of any epoch."""
    value: float | None
    """The objective: held-out robust accuracy or C. Only complete trials have it."""
    grad_evals: int | None
    """What was spent; a failed trial has none."""
    cost: float | None
    """The same per training image, and per epoch that was trained."""

    @classmethod
    def read(cls, folder: Path) -> "TrialResult":
        hint = f"delete {quoted(folder)} to train it again"
        return cls(**read_record(folder / "result.json", RESULT, hint=hint))

    def write(self, folder: Path) -> None:
        write_record(folder / "result.json", asdict(self))


class Result(TypedDict):
    """The fields of a `TrialResult`, as they must be in its file."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    trial: Index
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    accuracy: Share
    value: Finite | None
    grad_evals: Index | None
    cost: Amount | None


RESULT = TypeAdapter(Result)


def train_trial(
    trial: optuna.Trial,
    recipe: Recipe,
    splits: Splits,
    folder: Path,
    attack: str,
    reporter: Reporter,
    criterion: CriterionSettings | None,
    budget: float,
) -> TrialResult:
    """Train the recipe in `folder`/run. The objective is C with these settings if `criterion` is
    given, else the held-out accuracy under `attack`. `budget` is in gradient evaluations per image
    and epoch. Once the whole run's are spent no further epoch begins, and the trial is pruned."""
    wall = WallClock()
    images = training_batches(splits.train, recipe, torch.device("cpu")).count
    assert images is not None
    pruning = PruningReporter(trial, attack, reporter)
    if criterion is not None:
        recipe = _keeping_epochs(recipe)
    run = _open_run(folder / "run", recipe, pruning)
    try:
        fitted = train_model(
            build_model(recipe, splits.train, trust=True),
            splits.train,
            splits.valid,
            recipe,
            run=run,
            reporter=pruning,
            wall=wall,
            budget=budget * images * recipe.train.epochs,
        )
    except (optuna.TrialPruned, BudgetSpent) as stopped:
        rows = run.epochs()
        if isinstance(stopped, BudgetSpent):
            reporter.note(f"{stopped} of {recipe.train.epochs}: it costs more than its price")
            spent = stopped.grad_evals
        else:
            spent = rows[-1]["grad_evals"]
        accuracy, cost = max(pruning.seen.values(), default=0.0), spent / images / max(len(rows), 1)
        return TrialResult(trial.number, "PRUNED", accuracy, None, spent, cost)
    accuracy = max(row["valid"][attack] for row in fitted.epochs if "valid" in row)
    value = accuracy
    run.write_summary(fitted.summary(recipe, {}, wall))
    if criterion is not None:
        (measured,) = measure_strategies([run], criterion, folder, reporter)
        value = measured["c"]
    cost = fitted.grad_evals / images / recipe.train.epochs
    return TrialResult(trial.number, "COMPLETE", accuracy, value, fitted.grad_evals, cost)


def _open_run(path: Path, recipe: Recipe, pruning: PruningReporter) -> RunFolder:
    """A new run folder, or an interrupted one, whose epochs are reported to the study again."""
    remember(recipe, pruning.note)
    if (path / "recipe.toml").is_file():
        run = RunFolder.open(path)[0]
        for row in run.epochs():
            pruning.report(row)
        return run
    return RunFolder.create(path, recipe)


def _keeping_epochs(recipe: Recipe) -> Recipe:
    return replace(recipe, train=recipe.train.model_copy(update={"keep_epochs": True}))
