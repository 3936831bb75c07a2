"""Fits what `amata plan` expects of CIFAR-10 to all stored runs of one recipe, checks it on
held-out budgets, and compares epochs with attack steps at equal cost. It writes
[expected] of time_rule.toml and docs/time.md (--check only compares). Runs of new studies count as
soon as they are stored."""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import tomli_w

import stored
import within
from amata import recipes
from amata.errors import InputError
from amata.studies.intervals import t_quantile
from amata.training.time_plan import Prices, plan_within
from amata.training.time_rule import are_related, time_rule
from definition import RESULTS
from differences import COLLAPSED
from page import Parts, markdown, refuse_others, rewrite

ROOT = Path(__file__).parents[1]
RULE = ROOT / "src" / "amata" / "training" / "time_rule.toml"
PAGE = ROOT / "docs" / "time.md"
RECIPE, ATTACK = "cifar10-amata-quick", "pgd-20"
DEVICE = "H200"
STUDY = "cifar10-epochs-or-k"
NEAR = 0.25
"""How far the epochs of a run that is fitted may be from those of the rule, as a share."""
POWERS = tuple(tenth / 10 for tenth in range(3, 16))
"""Of the updates, in the formula of the accuracy."""
EQUAL = 1.05
"""Runs whose costs differ by less than this factor are compared; so far outside the stored runs
accuracy is predicted."""


@dataclass(frozen=True)
class Run:
    """A stored run."""

    name: str
    steps: tuple[float, ...]
    """K of every epoch."""
    seconds: float
    accuracy: float
    timed: bool = False
    """It was given a time."""

    @property
    def mean_steps(self) -> float:
        return statistics.mean(self.steps)


@dataclass(frozen=True)
class Fit:
    """accuracy = a - b / updates ** power."""

    a: float
    b: float
    power: float
    half_width: float

    def __call__(self, updates: float) -> float:
        return self.a - self.b / updates**self.power


def runs() -> list[Run]:
    """All stored runs of the recipe that differ in epochs, schedule and seed alone."""
    return _read()[0]


def unreadable() -> list[str]:
    """The folder of every stored run whose recipe is of an earlier version."""
    return _read()[1]


@cache
def _read() -> tuple[list[Run], list[str]]:
    own, found, old = recipes.load(RECIPE), list[Run](), list[str]()
    folders = [*RESULTS.glob("*/runs/*"), *(ROOT / "evidence" / "records").glob("*/runs/*")]
    folders += within.RESULTS.glob("*")
    for folder in sorted(folders):
        try:
            recipe = recipes.load(folder / "recipe.toml")
        except InputError:  # of an earlier version
            old.append(folder.parents[1].name)
            continue
        if not are_related(recipe, own) or not (folder / "summary.json").is_file():
            continue
        if not all(DEVICE in env["device"] for env in stored.environments(folder)):
            continue
        summary, (rows, events) = stored.summary(folder), stored.read_rows(folder)
        if events:  # it took other steps than its schedule's
            continue
        steps = tuple(row["steps"] for row in rows)
        accuracy = summary["evaluation"][ATTACK]["accuracy"]
        timed = recipe.train.within is not None
        found.append(Run(folder.name, steps, summary["train_seconds"], accuracy, timed))
    return found, old


def prices(found: Sequence[Run]) -> tuple[float, float]:
    """Seconds of an epoch of updates, and of one attack step in it: a line through all runs but
    those that were given a time, which may not be compiled."""
    own = [run for run in found if not run.timed]
    slope, start = np.polyfit(
        [run.mean_steps for run in own], [run.seconds / len(run.steps) for run in own], 1
    )
    return float(start), float(slope)


def rising(found: Sequence[Run]) -> list[Run]:
    """The runs whose schedules the rule may choose: K never falls. It ends at 2 or more, if not in
    a run of the rule. Some of them collapsed, for which see `collapses`."""
    own = all_rising(found)
    return [r for r in own if r.accuracy >= COLLAPSED * max(run.accuracy for run in own)]


def all_rising(found: Sequence[Run]) -> list[Run]:
    """With those that collapsed."""
    return [r for r in found if list(r.steps) == sorted(r.steps) and (r.timed or r.steps[-1] >= 2)]


def collapses() -> str:
    """A sentence about the runs that collapsed."""
    names = [f"`{r.name}`" for r in all_rising(runs()) if r not in rising(runs())]
    return f" Left out, because they collapsed: {', '.join(names)}." if names else ""


def updates_of(run: Run, update: float, step: float) -> float:
    """What a run costs, in epochs of plain updates."""
    return len(run.steps) * (1 + run.mean_steps * step / update)


def fitted(points: Sequence[tuple[float, float]]) -> Fit:
    """Least squares; the interval of a new run of another budget, at the edge of the known ones:
    budgets deviate from the line, and runs from their budget."""
    y = np.array([accuracy for _, accuracy in points])

    def powers(power: float) -> np.ndarray:
        return np.array([updates**-power for updates, _ in points])

    def squares(power: float) -> float:
        return float(np.polyfit(powers(power), y, 1, full=True)[1].sum())

    power = min(POWERS, key=squares)
    x = powers(power)
    slope, start = np.polyfit(x, y, 1)
    rest, groups = y - start - slope * x, [round(updates) for updates, _ in points]
    own = [rest[[g == group for g in groups]] for group in sorted(set(groups))]
    sizes, free = np.array([len(r) for r in own]), len(own) - 3
    runs = sum(float(((r - r.mean()) ** 2).sum()) for r in own) / max(len(x) - len(own), 1)
    budgets = sum(len(r) * float(r.mean()) ** 2 for r in own) / free
    each = (len(x) - float((sizes**2).sum()) / len(x)) / (len(own) - 1)  # runs of a budget
    spread = math.sqrt(runs + max(budgets - runs, 0.0) / each)
    edge = float(((x - x.mean()) ** 2).max() / ((x - x.mean()) ** 2).sum())
    half = t_quantile(free) * spread * math.sqrt(1 + 1 / len(own) + edge)
    return Fit(float(start), float(-slope), power, half)


def points() -> list[tuple[str, float, float]]:
    """Name, updates and accuracy of every run that is fitted: with about the epochs that the rule
    would choose."""
    found = runs()
    update, step = prices(found)
    costs = [(r, updates_of(r, update, step)) for r in rising(found)]
    return [
        (r.name, cost, r.accuracy)
        for r, cost in costs
        if abs(len(r.steps) / epochs_by_rule(cost, step / update) - 1) <= NEAR
    ]


def epochs_by_rule(updates: float, step: float) -> int:
    rule = time_rule()
    plan = plan_within(recipes.load(RECIPE), Prices(1.0, step, 0.0), updates / rule.aim, rule)
    return len(plan.steps)


def equal_costs() -> list[list[tuple[float, Run]]]:
    """Runs with their updates, in groups of equal cost within which epochs differ."""
    found = runs()
    update, step = prices(found)
    groups: list[list[tuple[float, Run]]] = []
    for cost, run in sorted(
        ((updates_of(r, update, step), r) for r in rising(found)), key=lambda pair: pair[0]
    ):
        if groups and cost <= EQUAL * groups[-1][0][0]:
            groups[-1].append((cost, run))
        else:
            groups.append([(cost, run)])
    return [group for group in groups if len({len(run.steps) for _, run in group}) > 1]


def trade() -> str:
    """Accuracy by epochs and K, where stored runs of equal cost differ in epochs."""
    rows = []
    for group in equal_costs():
        arms: dict[tuple[int, str], list[tuple[float, Run]]] = {}
        for cost, run in group:
            arms.setdefault((len(run.steps), within.span(run.steps)), []).append((cost, run))
        for (epochs, k), own in sorted(arms.items()):
            cost = statistics.mean(cost for cost, _ in own)
            accuracy = statistics.mean(run.accuracy for _, run in own)
            rows.append([f"{cost:.1f}", f"{epochs}", k, f"{len(own)}", f"{100 * accuracy:.2f}"])
    if not rows:
        return (
            "No stored runs of equal cost differ in epochs yet. "
            f"[`{STUDY}`](../evidence/studies/{STUDY}.toml) is stated to measure that."
        )
    return markdown(["updates", "epochs", "K", "runs", "PGD-20 %, mean of runs"], rows)


def expected() -> str:
    """The table [expected] of the rule."""
    known = [(u, accuracy) for _, u, accuracy in points()]
    fit, budgets = fitted(known), [u for u, _ in known]
    update, step = prices(runs())
    table = {
        "recipe": RECIPE,
        "attack": ATTACK,
        "a": round(fit.a, 4),
        "b": round(fit.b, 4),
        "power": fit.power,
        "step": round(step / update, 3),
        "half_width": round(fit.half_width, 4),
        "fewest": round(min(budgets) / EQUAL, 1),
        "most": round(max(budgets) * EQUAL, 1),
    }
    return tomli_w.dumps({"expected": table})


def held_out() -> list[tuple[float, float, float, float, bool]]:
    """For every budget: updates, mean accuracy, the prediction by the other budgets, half of its
    interval, and whether every run is inside."""
    groups: dict[int, list[tuple[float, float]]] = {}
    for _, updates, accuracy in points():
        groups.setdefault(round(updates), []).append((updates, accuracy))
    rows = []
    for key, own in sorted(groups.items()):
        fit = fitted([p for other, of in groups.items() if other != key for p in of])
        updates = statistics.mean(u for u, _ in own)
        inside = all(abs(a - fit(u)) <= fit.half_width for u, a in own)
        seen = statistics.mean(a for _, a in own)
        rows.append((updates, seen, fit(updates), fit.half_width, inside))
    return rows


def table() -> str:
    update, step = prices(runs())
    checked = held_out()
    off = [abs(seen - said) for _, seen, said, _, _ in checked]
    rows = [
        [
            f"{u:.1f}",
            f"{100 * seen:.2f}",
            f"{100 * said:.2f} ± {100 * half:.2f}",
            "yes" if ok else "no",
        ]
        for u, seen, said, half, ok in checked
    ]
    head = ["updates", "PGD-20 %, mean of runs", "predicted from the other budgets", "runs inside"]
    known = points()
    timed = sum(r.timed for r in runs() if r.name in {name for name, _, _ in known})
    return (
        f"{len(known)} runs of `{RECIPE}` on one {DEVICE} with about the epochs that the rule "
        f"would choose: {timed} with `--within`, the others with schedules in which K never falls "
        f"and ends at 2 or more. Updates are counted by the mean prices of all stored runs: "
        f"{update:.2f} s for an epoch of updates and {step:.2f} s for an attack step.\n\n"
        f"{markdown(head, rows)}\n\nMean error of the prediction: "
        f"{100 * statistics.mean(off):.2f} points, largest {100 * max(off):.2f}. ± is a 95% "
        'prediction interval for one run; "yes": all runs are inside.'
        f"{collapses()}{left_out()}"
    )


def left_out() -> str:
    """A sentence about the stored runs that cannot be read."""
    if not (old := unreadable()):
        return ""
    return f" Not read: {len(old)} stored runs whose recipes are of an earlier version."


PARTS: Parts = {"came": within.table, "held-out": table, "trade": trade}


def rule_text() -> str:
    """The rule's file with [expected] written again."""
    text = RULE.read_text().split("\n[expected]")[0].rstrip("\n")
    return f"{text}\n\n{expected()}"


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    if text := left_out():
        print(f"note:{text}", file=sys.stderr)
    if "--check" not in sys.argv:
        RULE.write_text(rule_text())
    elif RULE.read_text() != rule_text():
        sys.exit(f"error: {RULE.name} differs from the results; run python evidence/time_rule.py")
    rewrite({PAGE: PARTS}, "time_rule")
