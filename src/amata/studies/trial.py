"""One trial of a search: train a schedule in its own folder, or resume it, and score it."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from amata.data import Splits
from amata.errors import missing, quoted
from amata.metrics import Finite, Index, Share
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import read_record, write_record
from amata.studies.criterion import CriterionSettings, measure_strategies
from amata.studies.pruning import PruningReporter
from amata.training import train_model
from amata.training.setup import build_model
from amata.training.trust import remember

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


RESULT = TypeAdapter(Result)


def train_trial(
    trial: optuna.Trial,
    recipe: Recipe,
    splits: Splits,
    folder: Path,
    attack: str,
    reporter: Reporter,
    criterion: CriterionSettings | None,
) -> TrialResult:
    """Train the recipe in `folder`/run. The objective is C with these settings if `criterion` is
    given, else the held-out accuracy under `attack`."""
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
        )
    except optuna.TrialPruned:
        return TrialResult(trial.number, "PRUNED", max(pruning.seen.values()), None, None)
    accuracy = max(row["valid"][attack] for row in fitted.epochs if "valid" in row)
    value = accuracy
    if criterion is not None:
        run.write_summary(fitted.summary(recipe, {}))
        (measured,) = measure_strategies([run], criterion, folder, reporter)
        value = measured["c"]
    return TrialResult(trial.number, "COMPLETE", accuracy, value, fitted.grad_evals)


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
