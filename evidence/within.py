"""The table of docs/time.md of runs that were given a time: what was planned, and what came. A new
run counts as soon as it is stored:

amata train RECIPE --within TIME --out OUT, then python evidence/within.py OUT
"""

import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import stored
from amata import recipes
from amata.quantity import in_time
from amata.runs import RunFolder
from amata.schedules import planned_controls
from definition import ROOT
from equal_cost import UNKNOWN
from measure import store_run
from page import markdown

RESULTS = ROOT / "evidence" / "results" / "within"
HEAD = (
    "given",
    "predicted",
    "took",
    "off",
    "training",
    "epochs",
    "K planned",
    "K taken",
    "clean %",
    "robust %, predicted",
    "robust %",
    "commit",
)


def ended(run: Path) -> float:
    """Seconds from the start of the command to the trained model on the disk."""
    wall = stored.summary(run)["wall_seconds"]
    return float(wall["total"] - wall["evaluate"])


def span(steps: Sequence[float]) -> str:
    first, last = (f"{k:.2f}".rstrip("0").rstrip(".") for k in (steps[0], steps[-1]))
    return first if first == last else f"{first} → {last}"


def row(run: Path) -> tuple[str, tuple[float, float], list[str]]:
    """The title of the run's table, its place there, and its cells."""
    recipe, summary = recipes.load(run / "recipe.toml"), stored.summary(run)
    time, seconds = recipe.train.within, ended(run)
    assert time is not None
    planned = [u.steps for u in planned_controls(recipe.schedule, recipe.train.epochs) or []]
    epochs = stored.read_rows(run)[0]
    (env,) = stored.environments(run)
    device = f"{env['threads']} CPU cores" if env["device"] == "cpu" else env["device"]
    robust = {a: r for a, r in summary["evaluation"].items() if a.startswith("pgd")}
    ((attack, result),) = robust.items()
    expected = RunFolder(run).plan()
    wanted, known = expected.get("seconds"), expected.get("accuracy")
    cells = [
        in_time(time),
        f"{wanted['low']:.1f} to {wanted['high']:.1f} s" if wanted else "not recorded",
        f"{seconds:.1f} s",
        f"{100 * (seconds / time - 1):+.1f}%",
        f"{summary['train_seconds']:.1f} s",
        str(recipe.train.epochs),
        span(planned),
        span([epoch["steps"] for epoch in epochs]),
        f"{100 * summary['evaluation']['clean']['accuracy']:.1f}",
        f"{100 * known['low']:.1f} to {100 * known['high']:.1f}" if known else UNKNOWN,
        f"{100 * result['accuracy']:.1f}",
        f"`{env['commit'][:8]}`",
    ]
    title = f"`{summary['recipe']}` on {device}, robust accuracy under {attack.upper()}:"
    return title, (time, epochs[-1]["unix_seconds"]), cells


def table() -> str:
    """One per recipe and device, the runs of each time in the order in which they were made."""
    tables: dict[str, list[list[str]]] = {}
    for title, _, cells in sorted(map(row, RESULTS.glob("*"))):
        tables.setdefault(title, []).append(cells)
    return "\n\n".join(f"{title}\n\n{markdown(HEAD, rows)}" for title, rows in tables.items())


def main(*runs: str) -> None:
    if not runs:
        sys.exit(f"error: no run given\n\n{__doc__}")
    for run in map(Path, runs):
        recipe = recipes.load(run / "recipe.toml")
        if recipe.train.within is None:
            sys.exit(f"error: {run} was not given a time; train it with --within")
        name = stored.summary(run)["recipe"]
        places = (RESULTS / f"{name}-{in_time(recipe.train.within)}-{n}" for n in count())
        store_run(run, next(place for place in places if not place.exists()))


if __name__ == "__main__":
    main(*sys.argv[1:])
