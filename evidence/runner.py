"""Runs a study in one process, for as long as there is time. Repeat the command to continue.

python evidence/runner.py STUDY OUT [--minutes N] [KEY=VALUE...]
    Makes the tuning trials and the runs that are neither in OUT nor in results/paper/STUDY: trials
    first, then the runs seed by seed over all arms. Nothing is started that would not fit into N
    minutes. OUT gets the small files; weights are not kept, and finished runs do not need them.
    Copy OUT to results/paper/STUDY to store the results. With any KEY=VALUE other than data.root it
    is a different study, and stored results do not count.

Data sets are read from $AMATA_DATA.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amata import recipes
from amata.console import ConsoleReporter
from amata.data import shared_data
from amata.errors import AmataError, InputError, Interrupted
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import write_record
from amata.studies.plan import run_name
from amata.studies.runs import check_runs, check_same_recipe, planned_cost
from amata.training.evaluations import evaluate_recipe
from amata.training.experiment import train
from amata.training.loaded import load_trained
from definition import RESULTS, Sets, Study
from measure import store_run
from stored import read_rows
from study import STUDIES

SLACK = 1.25
"""A run is expected to take this many times what its cost and the last run say."""


@dataclass
class Runner:
    """The work of a study that is left, and where its results are."""

    study: Study
    out: Path
    stored: Path | None = None
    overrides: Sequence[str] = ()
    deadline: float = float("inf")
    pace: float = field(default=0.0, init=False)
    """Seconds per planned gradient evaluation of an image, by the last run."""
    tested: float = field(default=0.0, init=False)
    """Seconds of the last run's final evaluation."""

    def run(self, reporter: Reporter) -> int:
        """Do what fits into the time. Returns how many trials, or then runs, are left."""
        self.out.mkdir(parents=True, exist_ok=True)
        with shared_data(), tempfile.TemporaryDirectory() as work:
            self.check(Path(work))
            trials = self.carry_out(self.trials(), Path(work), reporter)
            return trials or self.carry_out(self.runs(), Path(work), reporter)

    def carry_out(
        self, planned: Iterator[tuple[str, Recipe]], work: Path, reporter: Reporter
    ) -> int:
        """Trials or runs in their order, up to the first that does not fit into the time."""
        left = [task for task in planned if not self.finished(*task)]
        failed = 0
        while left and self.fits(left[0][1], work):
            failed += not self.attempt(*left.pop(0), work, reporter)
        return failed + len(left)

    def finished(self, name: str, recipe: Recipe) -> bool:
        place = self.found(name)
        if place is None:
            return False
        check_recorded(place, recipe)
        if place.is_dir():
            self.learn(place, recipe)
        return True

    def learn(self, run: Path, recipe: Recipe, seconds: float | None = None) -> None:
        """What a run took in training and testing, from its files or, if known, in all."""
        summary = RunFolder(run).summary()
        self.tested = sum(result["seconds"] for result in summary["evaluation"].values())
        trained = summary["train_seconds"] if seconds is None else seconds - self.tested
        self.pace = trained / planned_cost(run / "new", recipe)

    def fits(self, recipe: Recipe, work: Path) -> bool:
        expected = planned_cost(work / "new", recipe) * self.pace + self.tested
        return time.monotonic() + SLACK * expected < self.deadline

    def check(self, work: Path) -> None:
        """Find input errors before the first run."""
        first = [self.recipe(title, (), 0) for title in self.study.recipes]
        check_runs([(work / run_name(recipe), recipe) for recipe in first])

    def recipe(self, title: str, sets: Sets, seed: int) -> Recipe:
        base, own = self.study.recipes[title]
        attacks = f"eval.attacks={json.dumps(self.study.attacks)}"
        common = (attacks, "train.tensorboard=false", f"train.seed={seed}")
        return recipes.load(base, [*own, *common, *self.overrides, *sets], name=title)

    def trials(self) -> Iterator[tuple[str, Recipe]]:
        """The first trial of every arm, then the second."""
        tuning = self.study.tuning
        for index, sets in enumerate(tuning.trials if tuning else ()):
            for title in self.study.recipes:
                assert tuning is not None
                plain = self.recipe(title, (), 0)
                held_out = (
                    f"data.valid={tuning.images}",
                    f"train.valid_every={plain.train.epochs}",
                    'eval.attacks=["clean"]',
                )
                yield (
                    f"trials/{title}-{index}.json",
                    self.recipe(title, (*held_out, *sets), tuning.seed),
                )

    def runs(self) -> Iterator[tuple[str, Recipe]]:
        """All arms with the first seed, then with the next one."""
        for seed in range(self.study.seeds):
            for title in self.study.recipes:
                recipe = self.recipe(title, self.tuned(title), seed)
                yield f"runs/{run_name(recipe)}", recipe

    def tuned(self, title: str) -> Sets:
        """The settings of the trial with the highest held-out accuracy, the first one on a tie."""
        tuning = self.study.tuning
        if tuning is None:
            return ()
        files = [self.found(f"trials/{title}-{i}.json") for i in range(len(tuning.trials))]
        scores = [
            json.loads(file.read_text())["held_out"][tuning.attack] if file else -1.0
            for file in files
        ]
        return tuning.trials[scores.index(max(scores))]

    def found(self, name: str) -> Path | None:
        """Where the results of a trial or run are, if it is finished."""
        places = [self.out / name, *([self.stored / name] if self.stored else [])]
        return next(
            (p for p in places if (p if p.suffix == ".json" else p / "summary.json").is_file()),
            None,
        )

    def attempt(self, name: str, recipe: Recipe, work: Path, reporter: Reporter) -> bool:
        """Make a trial or run. A failed one is recorded, and False is returned for a run."""
        reporter.note(f"{name}: starting")
        started, folder = time.monotonic(), work / name.removesuffix(".json")
        folder.parent.mkdir(exist_ok=True)
        cost, trial, error = planned_cost(folder, recipe), name.endswith(".json"), ""
        try:
            run = train(recipe, folder, reporter)
            if trial:
                self.record(name, recipe, held_out(run, self.judged, reporter))
            else:
                store_run(folder, self.out / name)
        except (InputError, Interrupted):
            raise
        except AmataError as found:
            error = str(found)
            reporter.note(f"{name} failed: {error}")
            if trial:
                result = {"held_out": dict.fromkeys(self.judged, 0.0), "error": error}
                self.record(name, recipe, result)
            else:
                with (self.out / "failures.jsonl").open("a") as file:
                    file.write(f"{json.dumps({'run': name, 'error': error})}\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - started
        if trial:
            self.pace = seconds / cost
        elif not error:
            self.learn(self.out / name, recipe, seconds)
        return trial or not error

    @property
    def judged(self) -> list[str]:
        """The accuracies of a trial."""
        return ["clean", self.study.tuning.attack] if self.study.tuning else []

    def record(self, name: str, recipe: Recipe, result: dict[str, Any]) -> None:
        """Keep a trial."""
        (self.out / "trials").mkdir(exist_ok=True)
        about = {"arm": recipe.name, "fingerprint": recipe.fingerprint(), "set": recipe.chosen}
        write_record(self.out / name, {**about, **result})


def held_out(run: RunFolder, attacks: list[str], reporter: Reporter) -> dict[str, Any]:
    """The accuracy of a run's last weights on its held-out images, and where it was trained."""
    model, recipe, splits = load_trained(run.path / "last.safetensors")
    assert splits.valid is not None
    results = evaluate_recipe(model, recipe, splits.valid, reporter, attacks)
    env = run.environments()[-1]
    return {
        "held_out": {attack: result.accuracy for attack, result in results.items()},
        "images": len(splits.valid),
        "train_seconds": read_rows(run.path)[0][-1]["train_seconds"],
        "data": splits.hashes,
        "commit": env.get("commit"),
        "device": env.get("device"),
    }


def check_recorded(place: Path, recipe: Recipe) -> None:
    """Refuse results of another recipe: the study was changed after its first run."""
    if place.suffix != ".json":
        check_same_recipe(place, recipe)
    elif json.loads(place.read_text())["fingerprint"] != recipe.fingerprint():
        raise InputError(f"{place} is a trial of another version of {recipe.name}; remove it")


def main(*arguments: str) -> None:
    given = list(arguments)
    minutes = float("inf")
    if "--minutes" in given:
        at = given.index("--minutes")
        minutes = float(given[at + 1])
        del given[at : at + 2]
    if len(given) < 2 or given[0] not in STUDIES:
        sys.exit(f"error: unknown arguments\n\n{__doc__}\nStudies: {', '.join(STUDIES)}")
    name, out, *overrides = given
    other = [o for o in overrides if not o.startswith("data.root=")]
    stored = None if other else RESULTS / name
    deadline = time.monotonic() + 60 * minutes
    try:
        with ConsoleReporter() as reporter:
            left = Runner(STUDIES[name], Path(out), stored, overrides, deadline).run(reporter)
    except AmataError as error:
        sys.exit(f"error: {error}")
    print(f"{name}: {left or 'nothing'} left to do")


if __name__ == "__main__":
    main(*sys.argv[1:])
