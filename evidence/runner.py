"""Runs a study in one process, for as long as there is time. Repeat the command to continue.

python evidence/runner.py STUDY OUT [--minutes N] [--work DIR] [--part I/N] [KEY=VALUE...]
    Makes the search, the tuning trials and the runs that are neither in OUT nor in
    results/paper/STUDY, in this order; the runs seed by seed, of the arms with the most seeds
    first. Nothing is started that would not fit into N minutes. OUT gets the small files; weights
    are not kept, and finished runs do not need them. Copy OUT to results/paper/STUDY to store the
    results. With any KEY=VALUE other than data.root it is a different study, and stored results do
    not count.

    With --work, what does not fit is started too. After N minutes it is interrupted and saved in
    DIR, and the next command with the same DIR continues it. For runs that are longer than a
    command may be; saving takes some seconds after the N minutes.

    With --part 2/4 it makes the second of every four trials and runs: four such commands, with the
    same OUT and DIRs of their own, share a GPU that small networks do not fill. Their runs take
    longer, which the page says. Runs wait for the trials of all parts: repeat the command.

Data sets are read from $AMATA_DATA.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from amata import recipes
from amata.console import ConsoleReporter
from amata.data import shared_data
from amata.engine.worth import code_for
from amata.errors import AmataError, InputError, Interrupted
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import write_record
from amata.studies.epochs import run_steepness
from amata.studies.plan import run_name
from amata.studies.runs import check_runs, planned_cost, train_or_resume
from deadline import interrupting, working_folder
from definition import RESULTS, SEARCH, SHARED, Sets, Study, with_winner
from measure import STEEPNESS, store_run
from searching import search_schedule
from study import STUDIES
from trials import check_recorded, held_out

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
    work: Path | None = None
    """Where unfinished runs are kept; None: nowhere."""
    part: tuple[int, int] = (1, 1)
    """(i, n): only the i-th of every n trials and runs is made."""
    pace: float = field(default=0.0, init=False)
    """Seconds per planned gradient evaluation of an image, by the last run."""
    tested: float = field(default=0.0, init=False)
    """Seconds of the last run's final evaluation."""

    def run(self, reporter: Reporter) -> int:
        """Do what fits into the time. Returns how many trials, or then runs, are left."""
        self.out.mkdir(parents=True, exist_ok=True)
        if self.part[1] > 1:
            write_record(self.out / SHARED, {"parts": self.part[1]})
        # Of a study that is continued every run counts: with few left, compiling would not pay, and
        # their seconds would be those of other code.
        every = [*self.own(self.trials()), *self.own(self.runs())]
        with shared_data(), code_for(len(every)), working_folder(self.work) as work:
            if self.work is None:
                return self.do(work, reporter)
            try:
                with interrupting(self.deadline):
                    return self.do(work, reporter)
            except KeyboardInterrupt:
                if not self.late():
                    raise
                return max(self.left(), 1)  # what was begun is saved

    def do(self, work: Path, reporter: Reporter) -> int:
        self.check(work)
        if not self.searched(work, reporter):
            return max(self.left(), 1)
        self.carry_out(self.own(self.trials()), work, reporter)
        # A run needs the trials of all parts, and others may still make some.
        return self.missing(self.trials()) or self.carry_out(self.own(self.runs()), work, reporter)

    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    def left(self) -> int:
        """How many trials, or then runs, are not finished."""
        for tasks in (self.own(self.trials()), self.own(self.runs())):
            if missing := self.missing(tasks):
                return missing
        return 0

    def missing(self, tasks: Iterator[tuple[str, Recipe]]) -> int:
        return sum(self.found(name) is None for name, _ in tasks)

    def own(self, tasks: Iterator[tuple[str, Recipe]]) -> Iterator[tuple[str, Recipe]]:
        """Those of this part."""
        return islice(tasks, self.part[0] - 1, None, self.part[1])

    def carry_out(
        self, planned: Iterator[tuple[str, Recipe]], work: Path, reporter: Reporter
    ) -> int:
        """Trials or runs in their order, up to the first for which there is no time."""
        left = [task for task in planned if not self.finished(*task)]
        failed = 0
        while left and self.fits(self.cost(left[0][1]), self.tested):
            failed += not self.attempt(*left.pop(0), work, reporter)
        return failed + len(left)

    def searched(self, work: Path, reporter: Reporter) -> bool:
        """Whether the study has no search, or a finished one, whose winner is now an arm."""
        search = self.study.search
        if search is None:
            return True
        if (found := self.found(SEARCH)) is None:
            if self.part[0] > 1:
                return False  # the first part searches
            if not self.fits(search.budget * search.epochs * search.trials, 0.0):
                return False
            found = search_schedule(search, self.overrides, work, self.out, reporter)
        self.study = with_winner(self.study, found)
        return True

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
        self.pace = trained / self.cost(recipe)

    def cost(self, recipe: Recipe) -> float:
        """Gradient evaluations per image of a whole run; of an adaptive one, its budget."""
        budget = getattr(recipe.schedule, "budget", None)
        if budget is not None:
            return float(budget * recipe.train.epochs)
        return planned_cost(self.out / "new", recipe)

    def fits(self, cost: float, tested: float) -> bool:
        """Whether there is time for a run, or any time if it can be continued."""
        if self.work is not None:
            return not self.late()
        return time.monotonic() + SLACK * (cost * self.pace + tested) < self.deadline

    def check(self, work: Path) -> None:
        """Find input errors before the first run."""
        first = [self.recipe(title, (), 0) for title in self.study.recipes]
        check_runs([(work / run_name(recipe), recipe) for recipe in first])

    def recipe(self, title: str, sets: Sets, seed: int) -> Recipe:
        base, own = self.study.recipes[title]
        attacks = [*self.study.attacks]
        if title in self.study.autoattack:
            attacks.append("autoattack")
        common = [
            f"eval.attacks={json.dumps(attacks)}",
            "train.tensorboard=false",
            f"train.seed={seed}",
        ]
        if title in self.study.steepness:
            common.append("train.keep_epochs=true")
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
        for seed, title in self.study.runs():
            recipe = self.recipe(title, self.tuned(title), seed)
            yield f"runs/{run_name(recipe)}", recipe

    def tuned(self, title: str) -> Sets:
        """The settings of the trial that wins; of the first one before there are any."""
        tuning = self.study.tuning
        if tuning is None:
            return ()
        files = [self.found(f"trials/{title}-{i}.json") for i in range(len(tuning.trials))]
        held_out = [json.loads(file.read_text())["held_out"] if file else None for file in files]
        return tuning.trials[tuning.winner(held_out) or 0]

    def found(self, name: str) -> Path | None:
        """Where the results of a trial or run are, if it is finished."""
        places = [self.out / name, *([self.stored / name] if self.stored else [])]
        return next(
            (p for p in places if (p if p.suffix == ".json" else p / "summary.json").is_file()),
            None,
        )

    def attempt(self, name: str, recipe: Recipe, work: Path, reporter: Reporter) -> bool:
        """Make a trial or run. A failed one is recorded, and False is returned for a run."""
        started, folder = time.monotonic(), work / name.removesuffix(".json")
        trial, error, resumed = name.endswith(".json"), "", (folder / "recipe.toml").is_file()
        reporter.note(f"{name}: {'continuing' if resumed else 'starting'}")
        folder.parent.mkdir(exist_ok=True)
        try:
            run = train_or_resume(folder, recipe, reporter)
            if trial:
                self.record(name, recipe, held_out(run, self.judged, reporter))
            else:
                if recipe.name in self.study.steepness:
                    write_record(folder / STEEPNESS, {"epochs": run_steepness(folder)})
                store_run(folder, self.out / name)
        except InputError:
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
        shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - started
        if trial:
            self.pace = seconds / self.cost(recipe)
        elif not error:
            self.learn(self.out / name, recipe, None if resumed else seconds)
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


def option(given: list[str], name: str) -> str | None:
    """Take an option with its value out of the arguments."""
    if name not in given:
        return None
    at = given.index(name)
    value = given[at + 1] if at + 1 < len(given) else sys.exit(f"error: {name} needs a value")
    del given[at : at + 2]
    return value


def read_part(text: str) -> tuple[int, int]:
    """I/N as numbers."""
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        sys.exit(f"error: --part {text} is not I/N, such as 2/4")
    return int(i), int(n)


def main(*arguments: str) -> None:
    given = list(arguments)
    minutes, work = option(given, "--minutes"), option(given, "--work")
    part = read_part(option(given, "--part") or "1/1")
    if len(given) < 2 or given[0] not in STUDIES:
        sys.exit(f"error: unknown arguments\n\n{__doc__}\nStudies: {', '.join(STUDIES)}")
    name, out, *overrides = given
    other = [o for o in overrides if not o.startswith("data.root=")]
    stored = None if other else RESULTS / name
    deadline = time.monotonic() + 60 * float(minutes or "inf")
    runner = Runner(
        STUDIES[name], Path(out), stored, overrides, deadline, Path(work) if work else None, part
    )
    try:
        with ConsoleReporter() as reporter:
            left = runner.run(reporter)
    except AmataError as error:
        sys.exit(f"error: {error}")
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    print(f"{name}: {left or 'nothing'} left to do")


if __name__ == "__main__":
    main(*sys.argv[1:])
