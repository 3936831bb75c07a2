"""Fits what `amata plan` expects of CIFAR-10 to stored runs, and checks it on held-out budgets:
python evidence/time_rule.py writes [expected] of time_rule.toml and docs/time.md (--check only
compares)."""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

import stored
from amata import recipes
from amata.errors import InputError
from amata.training.time_rule import are_related
from definition import RESULTS
from intervals import t_quantile
from page import Parts, markdown, refuse_others, rewrite

ROOT = Path(__file__).parents[1]
RULE = ROOT / "src" / "amata" / "training" / "time_rule.toml"
PAGE = ROOT / "docs" / "time.md"
RECIPE, ATTACK = "cifar10-amata-quick", "pgd-20"
DEVICE = "H200"


@dataclass(frozen=True)
class Run:
    """A stored run."""

    name: str
    steps: tuple[int, ...]
    """K of every epoch."""
    seconds: float
    accuracy: float

    @property
    def mean_steps(self) -> float:
        return statistics.mean(self.steps)


@dataclass(frozen=True)
class Fit:
    """accuracy = a - b / updates, and the price of a step in updates."""

    a: float
    b: float
    half_width: float

    def __call__(self, updates: float) -> float:
        return self.a - self.b / updates


def runs() -> list[Run]:
    """All stored runs of the recipe that differ in epochs, schedule and seed alone."""
    own, found = recipes.load(RECIPE), []
    folders = [*RESULTS.glob("*/runs/*"), *(ROOT / "evidence" / "records").glob("*/runs/*")]
    for folder in sorted(folders):
        try:
            recipe = recipes.load(folder / "recipe.toml")
        except InputError:  # of an earlier version
            continue
        if not are_related(recipe, own) or not (folder / "summary.json").is_file():
            continue
        if not all(DEVICE in env["device"] for env in stored.environments(folder)):
            continue
        summary, rows = stored.summary(folder), stored.read_rows(folder)[0]
        steps = tuple(int(row["steps"]) for row in rows)
        accuracy = summary["evaluation"][ATTACK]["accuracy"]
        found.append(Run(folder.name, steps, summary["train_seconds"], accuracy))
    return found


def prices(found: Sequence[Run]) -> tuple[float, float]:
    """Seconds of an epoch of updates, and of one attack step in it: a line through all runs."""
    slope, start = np.polyfit(
        [run.mean_steps for run in found], [run.seconds / len(run.steps) for run in found], 1
    )
    return float(start), float(slope)


def rising(found: Sequence[Run]) -> list[Run]:
    """The runs whose schedules the rule may choose: K never falls, and ends at 2 or more. A single
    long step until the end collapses."""
    return [r for r in found if list(r.steps) == sorted(r.steps) and r.steps[-1] >= 2]


def updates_of(run: Run, update: float, step: float) -> float:
    """What a run costs, in epochs of plain updates."""
    return len(run.steps) * (1 + run.mean_steps * step / update)


def fitted(points: Sequence[tuple[float, float]]) -> Fit:
    """Least squares; the interval of a new run at the edge of the known budgets."""
    x = np.array([1 / updates for updates, _ in points])
    y = np.array([accuracy for _, accuracy in points])
    slope, start = np.polyfit(x, y, 1)
    rest = y - start - slope * x
    spread = math.sqrt(float((rest**2).sum()) / (len(x) - 2))
    edge = float(((x - x.mean()) ** 2).max() / ((x - x.mean()) ** 2).sum())
    half = t_quantile(len(x) - 2) * spread * math.sqrt(1 + 1 / len(x) + edge)
    return Fit(float(start), float(-slope), half)


def points() -> list[tuple[str, float, float]]:
    """Name, updates and accuracy of every run that is fitted."""
    found = runs()
    update, step = prices(found)
    return [(r.name, updates_of(r, update, step), r.accuracy) for r in rising(found)]


def expected() -> str:
    """The table [expected] of the rule."""
    known = [(u, accuracy) for _, u, accuracy in points()]
    fit, budgets = fitted(known), [u for u, _ in known]
    table = {
        "recipe": RECIPE,
        "attack": ATTACK,
        "a": round(fit.a, 4),
        "b": round(fit.b, 4),
        "half_width": round(fit.half_width, 4),
        "fewest": round(min(budgets), 1),
        "most": round(max(budgets), 1),
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
    return (
        f"{len(known)} runs of `{RECIPE}` on one {DEVICE} with other schedules, where K never "
        f"falls and ends at 2 or more. An epoch of updates took {update:.2f} s, an attack step "
        f"{step:.2f} s more.\n\n{markdown(head, rows)}\n\nMean error of the prediction: "
        f"{100 * statistics.mean(off):.2f} points, largest {100 * max(off):.2f}."
    )


PARTS: Parts = {"held-out": table}


def rule_text() -> str:
    """The rule's file with [expected] written again."""
    text = RULE.read_text().split("\n[expected]")[0].rstrip("\n")
    return f"{text}\n\n{expected()}"


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    if "--check" not in sys.argv:
        RULE.write_text(rule_text())
    elif RULE.read_text() != rule_text():
        sys.exit(f"error: {RULE.name} differs from the results; run python evidence/time_rule.py")
    rewrite({PAGE: PARTS}, "time_rule")
