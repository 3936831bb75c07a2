"""What the paper's studies left under evidence/results/paper, read back: their runs, and numbers of
them ready for a table."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study import STUDIES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "paper"

Runs = list[dict[str, Any]]


def summaries(study: str) -> dict[str, Runs]:
    """The finished runs of a study by recipe, in the study's order."""
    found = {
        title: sorted((RESULTS / study).glob(f"runs/{title}-seed*/summary.json"))
        for title in STUDIES[study].recipes
    }
    return {
        title: [json.loads(file.read_text()) for file in files]
        for title, files in found.items()
        if files
    }


def mean(values: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """Their mean, with their standard deviation where there are several."""
    spread = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.mean(values):.{digits}f}{spread}"


def accuracy(runs: Runs, attack: str) -> str:
    return mean([run["evaluation"][attack]["accuracy"] for run in runs], scale=100)


def autoattack(folder: Path, title: str) -> str:
    """Under AutoAttack, on those runs of a recipe on which it was run; nothing, where it was on
    none."""
    files = sorted(folder.glob(f"autoattack-{title}-seed*.json"))
    found = [json.loads(file.read_text())["autoattack@1000"]["accuracy"] for file in files]
    return mean(found, 1, 100) if found else ""


def seconds(runs: Runs) -> float:
    return statistics.mean(run["train_seconds"] for run in runs)


def cost(runs: Runs) -> float:
    """Gradient evaluations an image and epoch."""
    return statistics.mean(run["grad_evals_per_image"] for run in runs)


def metrics(study: str, title: str) -> list[list[dict[str, Any]]]:
    """What each run told of its epochs."""
    files = sorted((RESULTS / study).glob(f"runs/{title}-seed*/metrics.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def held_out_attack(study: str, title: str) -> str:
    """The attack under which held-out images were watched."""
    return next(
        name
        for rows in metrics(study, title)
        for row in rows
        for name in row.get("valid", {})
        if name != "clean"
    )


def reached(study: str, title: str, threshold: float) -> float | None:
    """Seconds until the held-out robust accuracy first was at least this, averaged over the runs;
    none where one never got there."""
    attack, times = held_out_attack(study, title), []
    for rows in metrics(study, title):
        first = next(
            (
                row["train_seconds"]
                for row in rows
                if row.get("valid", {}).get(attack, 0) >= threshold
            ),
            None,
        )
        if first is None:
            return None
        times.append(first)
    return statistics.mean(times)


def highest(study: str, title: str) -> float:
    """The highest held-out robust accuracy, averaged over the runs."""
    attack = held_out_attack(study, title)
    return statistics.mean(
        max(row.get("valid", {}).get(attack, 0) for row in rows) for rows in metrics(study, title)
    )


def pending(study: str) -> str:
    return f"Not measured yet: `python evidence/paper.py measure {study}`."
