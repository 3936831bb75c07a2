"""The stored runs of the studies under results/paper, and their numbers formatted for a table."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amata.runs import RunFolder
from definition import RECORDS, RESULTS, SHARED
from study import STUDIES

Rows = list[dict[str, Any]]
CHANCE_COLLAPSE = ("chance-collapse", "fall")
"""The event of a collapse to chance accuracy; older metrics.jsonl files call it "fall"."""


def read_rows(run: Path) -> tuple[Rows, Rows]:
    """The epochs and the events of a run's metrics.jsonl."""
    folder = RunFolder(run)
    return [dict(row) for row in folder.epochs()], [dict(event) for event in folder.events()]


def runs_of(study: str, title: str) -> list[Path]:
    """The folders of the finished runs of a recipe, by seed."""
    return [
        file.parent for file in sorted(RESULTS.glob(f"{study}/runs/{title}-seed*/summary.json"))
    ]


def entry_runs(name: str) -> list[Path]:
    """The folders of the runs of an entry of the speed records, by seed."""
    return [file.parent for file in sorted(RECORDS.glob(f"{name}/runs/*/summary.json"))]


def summary(run: Path) -> dict[str, Any]:
    return RunFolder(run).summary()


def environments(run: Path) -> Rows:
    """Where a run was trained, once for each start."""
    return [dict(env) for env in RunFolder(run).environments()]


def summaries(study: str) -> dict[str, Rows]:
    """The summaries of a study's finished runs by recipe, in the study's order, with how many of
    their epochs were rolled back."""
    found: dict[str, Rows] = {}
    for title in STUDIES[study].recipes:
        for run in runs_of(study, title):
            back = {"rolled_back": len(read_rows(run)[1])}
            found.setdefault(title, []).append({**summary(run), **back})
    return found


def epochs(study: str, title: str) -> list[Rows]:
    """The epochs of each run."""
    return [read_rows(run)[0] for run in runs_of(study, title)]


def chance_collapses(study: str, title: str) -> Rows:
    """The collapses to chance accuracy in all runs of a recipe."""
    events = [row for run in runs_of(study, title) for row in read_rows(run)[1]]
    return [row for row in events if row["event"] in CHANCE_COLLAPSE]


def mean(values: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """Mean, with the standard deviation if there are several values."""
    spread = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.mean(values):.{digits}f}{spread}"


def accuracy(runs: Rows, attack: str) -> str:
    return mean([run["evaluation"][attack]["accuracy"] for run in runs], scale=100)


def mean_accuracy(runs: Rows, attack: str) -> float:
    return statistics.mean(run["evaluation"][attack]["accuracy"] for run in runs)


def autoattack(folder: Path, title: str) -> str:
    """Accuracy under AutoAttack over the runs that were tested with it; empty if none were."""
    files = sorted(folder.glob(f"autoattack-{title}-seed*.json"))
    found = [json.loads(file.read_text())["autoattack@1000"]["accuracy"] for file in files]
    return mean(found, 1, 100) if found else ""


def processes(study: str) -> int:
    """How many runs shared the device. Their seconds depend on one another."""
    file = RESULTS / study / SHARED
    return int(json.loads(file.read_text())["parts"]) if file.is_file() else 1


def seconds(runs: Rows) -> float:
    return statistics.mean(run["train_seconds"] for run in runs)


def cost(runs: Rows) -> float:
    """Gradient evaluations per image and epoch."""
    return statistics.mean(run["grad_evals_per_image"] for run in runs)


def total_cost(runs: Rows) -> float:
    """Gradient evaluations per image over the whole training, rolled-back epochs included."""
    return statistics.mean(
        run["grad_evals_per_image"] * (run["epochs"] + run["rolled_back"]) for run in runs
    )


def costs(run: Path) -> list[float]:
    """Gradient evaluations per image up to the end of each epoch, rolled-back epochs included."""
    (rows, back), whole = read_rows(run), summary(run)
    trained = whole["epochs"] + len(back)
    images = whole["grad_evals"] / (whole["grad_evals_per_image"] * trained)
    return [row["grad_evals"] / images for row in rows]


def valid_attack(study: str, title: str) -> str:
    """The attack of the held-out robust accuracy."""
    return next(
        name
        for rows in epochs(study, title)
        for row in rows
        for name in row.get("valid", {})
        if name != "clean"
    )


def timed(study: str) -> bool:
    """Whether its seconds say something: its runs had the device for themselves."""
    return processes(study) == 1


def spent(study: str, run: Path) -> list[float]:
    """Seconds up to the end of each epoch, or gradient evaluations per image if they say more."""
    return [row["train_seconds"] for row in read_rows(run)[0]] if timed(study) else costs(run)


def spent_until(study: str, title: str, threshold: float) -> list[float | None]:
    """What each run had `spent` when its held-out robust accuracy first reached a threshold; None
    if it never did."""
    runs = runs_of(study, title)
    if not runs:
        return []
    attack = valid_attack(study, title)
    return [
        next(
            (
                cost
                for row, cost in zip(read_rows(run)[0], spent(study, run), strict=True)
                if row.get("valid", {}).get(attack, 0) >= threshold
            ),
            None,
        )
        for run in runs
    ]


def reached(runs: Sequence[float | None], unit: str) -> str:
    """The mean of what the runs had spent; if some never reached it, how many did."""
    known = [spent for spent in runs if spent is not None]
    if len(known) == len(runs):
        return f"{statistics.mean(known):.1f}{unit}"
    return f"by {len(known)} of {len(runs)} runs" if known else "not reached"


def highest(study: str, title: str) -> float:
    """The highest held-out robust accuracy, averaged over the runs."""
    attack = valid_attack(study, title)
    return statistics.mean(
        max(row.get("valid", {}).get(attack, 0) for row in rows) for rows in epochs(study, title)
    )


def pending(study: str) -> str:
    return f"Not measured yet: `python evidence/measure.py {study}`."
