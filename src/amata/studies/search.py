"""Search for a schedule under a budget: shape, k_min, k_max and tau, by held-out robust accuracy or
by the criterion C.

An optuna study in SQLite. Each trial trains one schedule in a folder named after the schedule
itself and held while it trains, so several processes can work on one study without training
anything twice, and a killed trial is taken up from its last checkpoint by whoever comes.
"""

import json
import os
import socket
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from amata.data import Splits
from amata.errors import AmataError, InputError, missing, unknown
from amata.evaluation import parse_attack
from amata.quantity import number, positive, whole
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import write_json
from amata.runs.lock import Busy, hold
from amata.seeds import derive
from amata.studies.cost import MethodCost
from amata.studies.criterion import CriterionSettings, measure_strategies
from amata.studies.pareto import told, winner, with_front
from amata.studies.pruning import PruningReporter
from amata.studies.space import SHAPES, Space, describe, schedule_key
from amata.training import train_model
from amata.training.device import resolve_device
from amata.training.experiment import build_model, load_data
from amata.training.interrupt import Interrupted

try:
    import optuna
    import sqlalchemy.exc
except ImportError:
    raise missing("optuna", "amata search", "search") from None

GIVE_UP = 100
"""So many proposals in a row that were all tried before mean that there is nothing left to try."""
BROKEN = 5
"""So many trainings in a row that broke off mean that it is not the schedule's fault."""

_State = optuna.trial.TrialState


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
        if recipe.data.valid == 0:
            raise InputError(
                "the search chooses by held-out accuracy, and this recipe holds nothing out; "
                "--set data.valid=500"
            )
        self.recipe, self.settings, self.out, self.reporter, self.broken = (
            recipe,
            settings,
            out,
            reporter,
            0,
        )
        self.attack = parse_attack(recipe.train.valid_attack).name
        self.splits = splits or load_data(recipe)
        self.space = Space(
            recipe,
            MethodCost.of(recipe, self.splits),
            settings.budget,
            settings.k_cap,
            settings.shapes,
        )
        (out / "trials").mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.direction: Literal["maximize", "minimize"] = (
            "maximize" if settings.objective == "robust" else "minimize"
        )
        # two processes that start together must not both make its tables
        with hold(out, "starting a study", wait=True):
            try:
                self.study = self._open_study()
            except sqlalchemy.exc.SQLAlchemyError:
                raise InputError(
                    f"{out / 'study.db'} is no study that can be read; choose another --out"
                ) from None

    def _open_study(self) -> optuna.Study:
        out, settings = self.out, self.settings
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{out / 'study.db'}", engine_kwargs={"connect_args": {"timeout": 120}}
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
            **{k: v for k, v in asdict(self.settings).items() if k != "trials"},
        }
        about = json.loads(json.dumps(about))
        known = study.user_attrs.get("about")
        if known is None:
            if (own := self.space.own()) is not None:
                study.enqueue_trial(own)  # the recipe's own schedule is tried first
            study.set_user_attr("about", about)
        elif known != about:
            changed = ", ".join(k for k in about if known.get(k) != about[k])
            raise InputError(
                f"{self.out} holds a study with another {changed}; go on with the same "
                "settings or choose another --out"
            )
        return study

    def run(self) -> dict[str, Any] | None:
        """Go on until the study has its number of trials; what earlier calls and other processes
        did counts.

        None where there is no result yet, because other processes are still training.
        """
        stale = 0
        while stale < GIVE_UP:
            self._take_up_the_killed()
            trial = self.study.ask()
            trial.set_user_attr("process", _process())
            if (
                sum(
                    1
                    for t in self.study.get_trials(deepcopy=False)
                    if _counts(t) and t.number < trial.number
                )
                >= self.settings.trials
            ):
                self.study.tell(trial, state=_State.FAIL)
                break
            # Seeded by the trial's number, two processes that start together do not propose the
            # same. What was tried before teaches the sampler nothing, so after such a proposal it
            # would insist; chance does not.
            seed = derive(self.settings.seed, trial.number) % 2**31
            self.study.sampler = (
                optuna.samplers.RandomSampler(seed)
                if stale
                else optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
            )
            stale = 0 if self._try(trial) else stale + 1
        if stale >= GIVE_UP:
            self.reporter.note(
                "no schedule within the budget could be found that has not been tried"
            )
        states = {t.state for t in self.study.get_trials(deepcopy=False)}
        if _State.COMPLETE not in states and _State.RUNNING in states:
            self.reporter.note(
                "all trials are being trained by other processes, which will tell the result"
            )
            return None
        return self.summary()

    def _take_up_the_killed(self) -> None:
        """Trials that nobody trains any more: their folder is not held, or they never got as far as
        one."""
        for frozen in self.study.get_trials(deepcopy=False, states=(_State.RUNNING,)):
            key, started = frozen.user_attrs.get("key"), frozen.datetime_start or datetime.now()
            try:
                with hold(self.out / "trials" / key, "training") if key else nullcontext():
                    dead = key is not None or datetime.now() - started > timedelta(minutes=1)
            except Busy:
                dead = False
            if dead:
                self._give_back(frozen.number, frozen.params)

    def _give_back(self, number: int, params: dict[str, Any]) -> None:
        """A trial that was not finished fails, and its schedule is proposed again: training then
        goes on where it stopped."""
        try:
            self.study.tell(number, state=_State.FAIL)
        except (ValueError, RuntimeError):
            return  # another process was faster
        if params:
            self.study.enqueue_trial(params)

    def _try(self, trial: optuna.Trial) -> bool:
        """Train what the trial proposes; False where that was tried before, or is being tried
        elsewhere."""
        table = self.space.suggest(trial)
        recipe = self.space.recipe_with(table)
        key = schedule_key(recipe)
        folder = self.out / "trials" / key
        folder.mkdir(exist_ok=True)
        try:
            with hold(folder, "training"):
                for name, value in (
                    ("schedule", table),
                    ("key", key),
                    ("cost", self.space.cost(recipe)),
                ):
                    trial.set_user_attr(name, value)
                if (folder / "result.json").is_file():
                    return self._adopt(trial, folder)
                self._train(trial, recipe, folder)
                self.broken = 0
        except Busy:
            self.study.tell(trial, state=_State.FAIL)
            return False
        except Interrupted as interrupted:
            self._give_back(trial.number, trial.params)
            text = (
                f"interrupted in trial {trial.number}; the same command goes on with the study "
                f"in {self.out}"
            )
            raise Interrupted(text, interrupted.exit_code - 128) from None
        except InputError:
            raise
        # such as a loss that is not finite: this schedule's end, not the search's
        except AmataError as error:
            self._finish(trial, folder, "FAIL", 0.0, None, None)
            self.reporter.note(f"trial {trial.number} broke off: {error}")
            self.broken += 1
            if self.broken >= BROKEN:
                raise AmataError(
                    f"{BROKEN} schedules in a row broke off, the last one so: {error}"
                ) from None
            return False
        return True

    def _adopt(self, trial: optuna.Trial, folder: Path) -> bool:
        """A schedule that is trained already: news only if its process was killed before it could
        tell the study."""
        result = json.loads((folder / "result.json").read_text())
        owner = self.study.get_trials(deepcopy=False)[result["trial"]]
        if result["state"] == "FAIL" or owner.state in (_State.COMPLETE, _State.PRUNED):
            self.study.tell(trial, state=_State.FAIL)
            return False
        result["trial"] = trial.number
        write_json(folder / "result.json", result)
        self._tell(trial, result)
        return True

    def _train(self, trial: optuna.Trial, recipe: Recipe, folder: Path) -> None:
        watcher = PruningReporter(trial, self.attack, self.reporter)
        path = folder / "run"
        recipe = recipe if self.settings.objective == "robust" else self._keeping_epochs(recipe)
        if (path / "recipe.toml").is_file():
            run = RunFolder.open(path)[0]
            for row in run.epochs():
                watcher.report(row)  # what an earlier process has trained
        else:
            run = RunFolder.create(path, recipe)
            run.write_environment(resolve_device(recipe.train.device))
        self.reporter.note(
            f"trial {trial.number}: {describe(trial.user_attrs['schedule'])}, cost "
            f"{trial.user_attrs['cost']:.2f}"
        )
        try:
            fitted = train_model(
                build_model(recipe, self.splits.train),
                self.splits.train,
                self.splits.valid,
                recipe,
                run=run,
                reporter=watcher,
            )
        except optuna.TrialPruned:
            self._finish(trial, folder, "PRUNED", max(watcher.seen.values()), None, None)
            return
        accuracy = max(row["valid"][self.attack] for row in fitted.epochs if "valid" in row)
        value = accuracy
        if self.settings.objective == "criterion":
            write_json(
                run.path / "summary.json",
                {
                    "train_seconds": fitted.train_seconds,
                    "grad_evals": fitted.grad_evals,
                    "evaluation": {},
                },
            )
            settings = CriterionSettings(
                gamma=self.settings.gamma, k_max=self.settings.k_cap, seed=self.settings.seed
            )
            (measured,) = measure_strategies([run], settings, folder, self.reporter)
            value = measured["c"]
        self._finish(trial, folder, "COMPLETE", accuracy, value, fitted.grad_evals)

    @staticmethod
    def _keeping_epochs(recipe: Recipe) -> Recipe:
        return replace(recipe, train=recipe.train.model_copy(update={"keep_epochs": True}))

    def _finish(
        self,
        trial: optuna.Trial,
        folder: Path,
        state: str,
        accuracy: float,
        value: float | None,
        grad_evals: int | None,
    ) -> None:
        result = {
            "trial": trial.number,
            "state": state,
            "accuracy": accuracy,
            "value": value,
            "grad_evals": grad_evals,
        }
        # before the study is told: after a kill in between it can still be told
        write_json(folder / "result.json", result)
        self._tell(trial, result)
        if state == "FAIL":
            return
        score = (
            f"C {value:.4f}, "
            if self.settings.objective == "criterion" and value is not None
            else ""
        )
        self.reporter.note(
            f"trial {trial.number} {state.lower()}: {score}held-out {self.attack} {accuracy:.1%}"
        )

    def _tell(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        for name in ("accuracy", "grad_evals"):
            trial.set_user_attr(name, result[name])
        self.study.tell(trial, result["value"], state=getattr(_State, result["state"]))

    def summary(self) -> dict[str, Any]:
        """The study so far: every trial, the Pareto front of cost and held-out accuracy, and the
        winner."""
        trials = with_front(
            [
                told(t)
                for t in self.study.get_trials(deepcopy=False)
                if t.state in (_State.COMPLETE, _State.PRUNED)
            ]
        )
        best = winner(trials, highest=self.direction == "maximize")
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
        (self.out / "best.toml").write_text(
            f"# {describe(best['schedule'])}: found for {self.recipe.name} by amata "
            f"search\n{recipe.to_toml()}"
        )
        return result


def _counts(trial: Any) -> bool:
    return trial.state in (_State.COMPLETE, _State.PRUNED, _State.RUNNING)


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
