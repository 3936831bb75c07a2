"""Search for a schedule under a budget: shape, k_min, k_max and tau. The objective is held-out
robust accuracy or the criterion C.

An optuna study in SQLite. A trial trains one schedule in a folder named after the schedule, and
locks the folder while it trains. So several processes can share a study without training a schedule
twice, and any of them can resume a killed trial from its last checkpoint.
"""

import json
import os
import socket
import sqlite3
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from amata.data import Splits
from amata.engine.worth import code_for
from amata.errors import AmataError, InputError, missing, printable, unknown
from amata.evaluation import parse_attack
from amata.metrics import Amount, Index, Share
from amata.quantity import number, positive, whole
from amata.recipes import Recipe
from amata.recipes.recorded import refuse_own
from amata.reporter import Reporter, RunInfo
from amata.runs import RunFolder
from amata.runs.files import refuse_links, write_atomic, write_json
from amata.runs.lock import Busy, hold
from amata.seeds import derive
from amata.studies.cost import Prices
from amata.studies.criterion import CriterionSettings
from amata.studies.pareto import to_row, winner, with_front
from amata.studies.space import SHAPES, Space, describe, schedule_key
from amata.studies.trial import TrialResult, train_trial
from amata.training import Interrupted
from amata.training.setup import load_data

try:
    import optuna
    import sqlalchemy.exc
    from sqlalchemy.pool import QueuePool
except ImportError:
    raise missing("optuna", "amata search", "search") from None

WRITTEN = ("trials", "search.json", "best.toml", "pareto.svg", "pareto.png")
"""What a search writes besides its study.db."""
MAX_STALE = 100
"""Proposals in a row that were all trained before: the space is exhausted."""
MAX_FAILED = 5
"""Failed trainings in a row: the cause is not the schedule, so the search stops."""

_State = optuna.trial.TrialState
_FINISHED = (_State.COMPLETE, _State.PRUNED)


class Attributes(TypedDict, total=False):
    """What a search attaches to a trial."""

    process: Annotated[str, Field(pattern=r"^.*:\d{1,9}$")]
    schedule: dict[str, Any]
    key: Annotated[str, Field(pattern=r"^[\w-]{1,100}$")]
    cost: Amount
    accuracy: Share
    grad_evals: Index | None


TRIAL = TypeAdapter(Attributes)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    budget: float
    """Gradient evaluations per image and epoch."""
    objective: Literal["robust", "criterion"] = "robust"
    k_cap: int = 10
    shapes: tuple[str, ...] = SHAPES
    trials: int = 20
    prune: bool = True
    seed: int = 0
    gamma: float = 0.04

    def __post_init__(self) -> None:
        positive(self.budget, "budget")
        if number(self.gamma, "gamma") < 0:
            raise InputError(f"gamma = {self.gamma:g} must not be negative")
        whole(self.k_cap, "k_cap", 1), whole(self.trials, "trials", 1)
        if self.objective not in ("robust", "criterion"):
            raise unknown("objective", self.objective, ("robust", "criterion"))
        for shape in self.shapes:
            if shape not in SHAPES:
                raise unknown("shape", shape, SHAPES)

    @property
    def criterion(self) -> CriterionSettings | None:
        """How C is measured, if C is the objective."""
        if self.objective == "robust":
            return None
        return CriterionSettings(gammas=(self.gamma,), k_max=self.k_cap, seed=self.seed)


class Search:
    """One study in a folder: study.db, trials/, search.json, best.toml."""

    def __init__(
        self,
        recipe: Recipe,
        settings: SearchSettings,
        out: Path,
        reporter: Reporter,
        splits: Splits | None = None,
    ) -> None:
        refuse_own(recipe, "cannot be rebuilt for the runs of a search")
        if recipe.data.valid == 0:
            raise InputError(
                "the search needs held-out images, and data.valid is 0; --set data.valid=500"
            )
        self.recipe, self.settings, self.out, self.reporter = recipe, settings, out, reporter
        self.failed_in_a_row = 0
        self.attack = parse_attack(recipe.train.valid_attack).name
        self.splits = splits or load_data(recipe)
        self.prices = Prices(recipe, self.splits)
        self.learned: set[str] = set()
        """Trials whose epochs have corrected the prices."""
        if not self.prices.exact:
            reporter.note(
                "samples stop early, so costs depend on the data: they are estimated on a few "
                "batches, and corrected by trained trials"
            )
        self.space = Space(recipe, self.prices, settings.budget, settings.k_cap, settings.shapes)
        files = ("trials", *(f"study.db{end}" for end in ("", "-journal", "-wal", "-shm")))
        refuse_links(*(out / name for name in files))
        (out / "trials").mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.direction: Literal["maximize", "minimize"] = (
            "maximize" if settings.objective == "robust" else "minimize"
        )
        # two processes that start together must not both create the tables
        with hold(out, "starting a study", wait=True):
            try:
                self.study = self._open_study()
                self._check_trials()
            except InputError:
                raise
            except (sqlalchemy.exc.SQLAlchemyError, LookupError, TypeError, ValueError):
                raise InputError(
                    f"{out / 'study.db'} is not a readable study; choose another folder"
                ) from None

    def _open_study(self) -> optuna.Study:
        out, settings = self.out, self.settings
        # Not in the URL, where ?, % and {} have meanings: they may be in the folder's name.
        connect = partial(sqlite3.connect, out / "study.db", timeout=120, check_same_thread=False)
        storage = optuna.storages.RDBStorage(
            "sqlite://", engine_kwargs={"creator": connect, "poolclass": QueuePool}
        )
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=4, n_warmup_steps=max(1, self.recipe.train.epochs // 3)
        )
        study = optuna.create_study(
            study_name="amata",
            storage=storage,
            direction=self.direction,
            load_if_exists=True,
            pruner=pruner
            if settings.prune and settings.objective == "robust"
            else optuna.pruners.NopPruner(),
        )
        about = {
            "fingerprint": self.recipe.fingerprint(),
            **{k: v for k, v in asdict(settings).items() if k != "trials"},
        }
        about = json.loads(json.dumps(about))
        known = study.user_attrs.get("about")
        if not isinstance(known, dict | None):
            raise ValueError
        if known is None:
            if (own := self.space.recipe_params()) is not None:
                study.enqueue_trial(own)  # try the recipe's own schedule first
            study.set_user_attr("about", about)
        elif known != about:
            changed = ", ".join(k for k in about if known.get(k) != about[k])
            raise InputError(
                f"{out} holds a study with a different {changed}; use the same settings or "
                "choose another folder"
            )
        return study

    def _check_trials(self) -> None:
        """Refuse trials that no search has written. A finished one has all attributes."""
        for trial in self.study.get_trials(deepcopy=False):
            attributes = TRIAL.validate_python(trial.user_attrs, strict=True)
            needed = {"schedule", "key", "cost", "accuracy"} if trial.state in _FINISHED else set()
            if not needed <= attributes.keys() or (
                trial.state == _State.COMPLETE and trial.value is None
            ):
                raise ValueError

    def run(self) -> dict[str, Any] | None:
        """Run trials until the study has `settings.trials`, those of earlier calls and other
        processes included.

        Returns None if no trial is complete because other processes are still training.
        """
        stale = 0
        while stale < MAX_STALE:
            self._release_killed_trials()
            trial = self.study.ask()
            trial.set_user_attr("process", _process())
            earlier = [
                t
                for t in self.study.get_trials(deepcopy=False)
                if t.number < trial.number and (t.state in _FINISHED or _is_running(t))
            ]
            if len(earlier) >= self.settings.trials:
                self.study.tell(trial, state=_State.FAIL)
                break
            # The trial's number in the seed keeps two processes that start together from proposing
            # the same schedule. A repeated proposal adds no information, so TPE would propose it
            # again: sample at random instead.
            seed = derive(self.settings.seed, trial.number) % 2**31
            self.study.sampler = (
                optuna.samplers.RandomSampler(seed)
                if stale
                else optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
            )
            with code_for(self.settings.trials - len(earlier)):
                stale = 0 if self._try(trial, len(earlier)) else stale + 1
        if stale >= MAX_STALE:
            self.reporter.note("no untried schedule is left within the budget")
        every = self.study.get_trials(deepcopy=False)
        if not any(t.state == _State.COMPLETE for t in every) and any(map(_is_running, every)):
            self.reporter.note(
                "other processes are training all trials; the last one prints the result"
            )
            return None
        return self.summary()

    def _release_killed_trials(self) -> None:
        """Requeue running trials whose process died: nobody locks their folder, or they never got
        one. A lock may outlive its process for seconds, in a worker that loads data."""
        for frozen in self.study.get_trials(deepcopy=False, states=(_State.RUNNING,)):
            key = frozen.user_attrs.get("key")
            try:
                with hold(self.out / "trials" / key, "training") if key else nullcontext():
                    dead = key is not None or not _is_running(frozen)
            except Busy:
                dead = False
            except FileNotFoundError:  # somebody deleted it
                dead = True
            if dead:
                self._requeue(frozen)

    def _requeue(self, trial: Any) -> None:
        """Fail an unfinished trial and propose its schedule again, to be resumed. The schedule
        itself is kept: under corrected prices the same parameters may give another one."""
        try:
            self.study.tell(trial.number, state=_State.FAIL)
        except (ValueError, RuntimeError):
            return  # another process was faster
        if trial.params:
            kept = {k: v for k, v in trial.user_attrs.items() if k == "schedule"}
            self.study.enqueue_trial(trial.params, user_attrs=kept)

    def _learn(self) -> None:
        """Correct the prices by the epochs of all finished trials."""
        for trial in self.study.get_trials(deepcopy=False, states=_FINISHED):
            key = trial.user_attrs["key"]
            if key not in self.learned:
                self.learned.add(key)
                self.prices.learn(RunFolder(self.out / "trials" / key / "run").epochs())

    def _try(self, trial: optuna.Trial, earlier: int) -> bool:
        """Train the proposed schedule. False if it failed, was tried before, or is being trained by
        another process."""
        if not self.prices.exact:
            self._learn()
        interrupted = trial.user_attrs.get("schedule")
        table = self.space.suggest(trial)
        table = interrupted or table
        recipe = self.space.recipe_with(table)
        key, cost = schedule_key(recipe), self.space.cost(recipe)
        folder = self.out / "trials" / key
        refuse_links(folder, folder / "run")
        folder.mkdir(exist_ok=True)
        try:
            with hold(folder, "training"):
                for name, value in (("schedule", table), ("key", key), ("cost", cost)):
                    trial.set_user_attr(name, value)
                if (folder / "result.json").is_file():
                    return self._adopt(trial, folder)
                name = f"trial {trial.number}, {describe(table)}, cost {cost:.2f}"
                total = self.settings.trials
                self.reporter.run(RunInfo(earlier + 1, total, name, earlier / total, 1 / total))
                self._finish(
                    trial,
                    folder,
                    train_trial(
                        trial,
                        recipe,
                        self.splits,
                        folder,
                        self.attack,
                        self.reporter,
                        self.settings.criterion,
                        self.settings.budget,
                    ),
                )
                self.failed_in_a_row = 0
        except Busy:
            self.study.tell(trial, state=_State.FAIL)
            return False
        except Interrupted as interrupted:
            self._requeue(trial)
            text = f"interrupted in trial {trial.number}; repeat the command to resume {self.out}"
            raise Interrupted(text, interrupted.exit_code - 128) from None
        except InputError:
            raise
        except AmataError as error:  # such as a loss that is not finite
            self._fail(trial, folder, error)
            return False
        return True

    def _adopt(self, trial: optuna.Trial, folder: Path) -> bool:
        """Take over the result of a schedule that is trained already. True only if its process was
        killed before the study got the result."""
        result = TrialResult.read(folder)
        owners = self.study.get_trials(deepcopy=False)[result.trial :][:1]
        if result.state == "FAIL" or any(owner.state in _FINISHED for owner in owners):
            self.study.tell(trial, state=_State.FAIL)
            return False
        adopted = TrialResult(**{**asdict(result), "trial": trial.number})
        adopted.write(folder)
        self._tell(trial, adopted)
        return True

    def _fail(self, trial: optuna.Trial, folder: Path, error: AmataError) -> None:
        result = TrialResult(trial.number, "FAIL", 0.0, None, None, None)
        result.write(folder)
        self._tell(trial, result)
        self.reporter.note(f"trial {trial.number} failed: {error}")
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= MAX_FAILED:
            raise AmataError(
                f"{MAX_FAILED} trials in a row failed; the last error: {error}"
            ) from None

    def _finish(self, trial: optuna.Trial, folder: Path, result: TrialResult) -> None:
        result.write(folder)  # before `tell`: see _adopt
        self._tell(trial, result)
        score = (
            f"C {result.value:.4f}, "
            if self.settings.objective == "criterion" and result.value is not None
            else ""
        )
        self.reporter.note(
            f"trial {trial.number} {result.state.lower()}: {score}held-out {self.attack} "
            f"{result.accuracy:.1%}, cost {result.cost:.2f}"
        )

    def _tell(self, trial: optuna.Trial, result: TrialResult) -> None:
        trial.set_user_attr("accuracy", result.accuracy)
        trial.set_user_attr("grad_evals", result.grad_evals)
        if result.cost is not None:
            trial.set_user_attr("cost", result.cost)  # instead of its price
        self.study.tell(trial, result.value, state=getattr(_State, result.state))

    def summary(self) -> dict[str, Any]:
        """Every trial so far, the Pareto front of cost and held-out accuracy, and the winner."""
        trials = with_front(
            [to_row(t) for t in self.study.get_trials(deepcopy=False) if t.state in _FINISHED]
        )
        highest, budget = self.direction == "maximize", self.settings.budget
        best = winner(trials, highest=highest, budget=budget)
        if best is None:
            raise InputError(f"the study in {self.out} has no finished trial; raise --trials")
        recipe = self.space.recipe_with(best["schedule"])
        result = {
            "recipe": self.recipe.name,
            "attack": self.attack,
            "valid_n": len(self.splits.valid or []),
            "epochs": self.recipe.train.epochs,
            **asdict(self.settings),
            "best": best,
            "toml": recipe.to_toml(),
            "trials": trials,
        }
        write_json(self.out / "search.json", result)
        found_for = f"found for {printable(self.recipe.name)} by amata search"
        text = f"# {describe(best['schedule'])}: {found_for}\n{recipe.to_toml()}"
        write_atomic(self.out / "best.toml", text.encode())
        return result


def _is_running(trial: Any) -> bool:
    """Whether a trial's process is alive, as far as this machine can know. A trial of another
    machine, or of a process that just began, counts as running for a minute without a folder."""
    if trial.state != _State.RUNNING:
        return False
    host, _, process = trial.user_attrs.get("process", "").rpartition(":")
    if os.name == "posix" and host == socket.gethostname() and process.isdecimal():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # the process of another user
    started = trial.datetime_start or datetime.now()
    return "key" in trial.user_attrs or datetime.now() - started < timedelta(minutes=1)


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
