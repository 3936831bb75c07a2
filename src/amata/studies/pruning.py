"""A trial of a search, watched while it trains."""

from amata.errors import missing
from amata.metrics import EpochRow
from amata.reporter import Reporter

try:
    import optuna
except ImportError:
    raise missing("optuna", "amata search", "search") from None


class PruningReporter(Reporter):
    """Passes a trial's epochs on to the study, which may end it, and its life signs to the real
    reporter."""

    def __init__(self, trial: optuna.Trial, attack: str, reporter: Reporter) -> None:
        self.trial, self.attack, self.inner = trial, attack, reporter
        self.seen: dict[int, float] = {}
        self.batch = reporter.batch  # type: ignore[method-assign]
        self.evaluating = reporter.evaluating  # type: ignore[method-assign]
        self.note = reporter.note  # type: ignore[method-assign]

    def report(self, row: EpochRow) -> None:
        # An epoch whose row was written before a kill and whose checkpoint was not is trained, and
        # told of, once more: to the same end.
        if "valid" in row and row["epoch"] not in self.seen:
            self.seen[row["epoch"]] = row["valid"][self.attack]
            self.trial.report(self.seen[row["epoch"]], row["epoch"])

    def epoch(self, row: EpochRow) -> None:
        self.report(row)
        self.inner.epoch(row)
        if "valid" in row and self.trial.should_prune():
            raise optuna.TrialPruned
