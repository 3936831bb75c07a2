"""Report a trial's epochs to its optuna study, which may prune it."""

from amata.errors import missing
from amata.metrics import EpochRow
from amata.reporter import Reporter

try:
    import optuna
except ImportError:
    raise missing("optuna", "amata search", "search") from None


class PruningReporter(Reporter):
    """Reports held-out accuracies to the study and forwards all callbacks to `reporter`."""

    def __init__(self, trial: optuna.Trial, attack: str, reporter: Reporter) -> None:
        self.trial, self.attack, self.reporter = trial, attack, reporter
        self.seen: dict[int, float] = {}
        self.start = reporter.start  # type: ignore[method-assign]
        self.batch = reporter.batch  # type: ignore[method-assign]
        self.evaluating = reporter.evaluating  # type: ignore[method-assign]
        self.note = reporter.note  # type: ignore[method-assign]

    def report(self, row: EpochRow) -> None:
        """Report an epoch's held-out accuracy, once.

        A process killed between an epoch's row and its checkpoint trains that epoch again, with the
        same result.
        """
        if "valid" in row and row["epoch"] not in self.seen:
            self.seen[row["epoch"]] = row["valid"][self.attack]
            self.trial.report(self.seen[row["epoch"]], row["epoch"])

    def epoch(self, row: EpochRow) -> None:
        self.report(row)
        self.reporter.epoch(row)
        if "valid" in row and self.trial.should_prune():
            raise optuna.TrialPruned
