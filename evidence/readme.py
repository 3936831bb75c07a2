"""Rewrites the README's tables and picture from the files under evidence/results/ and records/.

python evidence/readme.py, or with --check to compare the tables alone.

With --measure it first makes what is missing of the demo: three seeds of both recipes (six minutes
on two cores).
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import results
from amata.report.figures import GREY, ORANGE
from page import markdown, picture, refuse_others, rewrite
from study import amata, keep_run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "mnist5k"
CIFAR10 = {"pgd10": "PGD-10", "amata": "Amata 2→10"}
RECORDS = ROOT / "evidence" / "records"
RECORD_HOLDERS = {
    "pgd20": "Amata 2→3 with Muon (`cifar10-amata-quick`)",
    "autoattack": "Amata 2→4 with Muon (`cifar10-amata-minute`)",
}
RECIPES = {"mnist5k-pgd": "PGD-10", "mnist5k-amata": "Amata 2→10"}
ATTACKS = ("clean", "pgd-40", "cw-pgd-40")


def measure() -> None:
    """The demo, on three seeds."""
    if RESULTS.is_dir():
        return
    with tempfile.TemporaryDirectory() as folder:
        amata(
            "compare", *RECIPES, "--seeds", "3", "--set", "train.tensorboard=false", "--out", folder
        )
        for run in Path(folder, "runs").iterdir():
            keep_run(run, RESULTS / run.name)


def headline() -> str:
    """Both trainings on CIFAR-10, and the speed records; means over seeds."""
    found, folder = results.summaries("cifar10"), results.RESULTS / "cifar10"
    rows = [
        headline_row(f"{name} (`cifar10-{title}`)", found[title], results.autoattack(folder, title))
        for title, name in CIFAR10.items()
    ]
    for title, name in RECORD_HOLDERS.items():
        runs = [
            json.loads(path.read_text())
            for path in sorted((RECORDS / title).glob("runs/*/summary.json"))
        ]
        rows.append(headline_row(name, runs, results.autoattack(RECORDS / title, title)))
    head = [
        "training",
        "clean %",
        "PGD-20 %",
        "CW-PGD-20 %",
        "AutoAttack %",
        "seconds",
        "gradients an image and epoch",
    ]
    return markdown(head, rows)


def headline_row(name: str, runs: results.Runs, autoattack: str) -> list[str]:
    if not autoattack:
        sys.exit(f"error: AutoAttack of {name} is missing")
    accuracies = [results.accuracy(runs, attack) for attack in ("clean", "pgd-20", "cw-pgd-20")]
    return [
        name,
        *accuracies,
        autoattack,
        f"{results.seconds(runs):.0f}",
        f"{results.cost(runs):.2f}",
    ]


def summaries(recipe: str) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for path in sorted(RESULTS.glob(f"{recipe}-seed*/summary.json"))
    ]


def per_seed(values: list[float], scale: float, digits: int) -> str:
    return " · ".join(f"{scale * v:.{digits}f}" for v in values)


def table() -> str:
    lines = [
        "| training | "
        + " | ".join(f"{a} %" for a in ATTACKS)
        + " | seconds | gradient evaluations |",
        "|---" * 6 + "|",
    ]
    for recipe, title in RECIPES.items():
        runs = summaries(recipe)
        accuracies = [
            per_seed([r["evaluation"][a]["accuracy"] for r in runs], 100, 1) for a in ATTACKS
        ]
        seconds = per_seed([r["train_seconds"] for r in runs], 1, 0)
        (cost,) = {r["grad_evals"] for r in runs}
        lines.append(f"| {title} (`{recipe}`) | {' | '.join(accuracies)} | {seconds} | {cost:,} |")
    n = summaries("mnist5k-amata")[0]["evaluation"]["clean"]["n"]
    lines.append(
        f"\nOne value per seed (0, 1, 2); {n:,} test digits, L∞ 0.2, two CPU cores; from "
        "`evidence/results/mnist5k/`."
    )
    return "\n".join(lines)


def draw(path: Path) -> None:
    with picture(path, 2, (8.4, 3.1)) as axes:
        for (recipe, title), colour in zip(CIFAR10.items(), (GREY, ORANGE), strict=True):
            for seed, rows in enumerate(results.metrics("cifar10", recipe)):
                times, robust = (
                    [r["train_seconds"] for r in rows],
                    [100 * (1 - r["valid"]["pgd-10"]) for r in rows],
                )
                axes[0].plot(
                    times,
                    robust,
                    color=colour,
                    marker="o",
                    ms=2.5,
                    lw=1.2,
                    label=title if seed == 0 else None,
                )
                if seed == 0:
                    axes[1].step(
                        [r["epoch"] + 1 for r in rows],
                        [r["steps"] for r in rows],
                        where="mid",
                        color=colour,
                        lw=1.8,
                        label=title,
                    )
        axes[0].set(
            xlabel="training seconds, one H200",
            ylabel="robust error, held-out images (%)",
            ylim=(50, None),
            xlim=(0, None),
        )
        axes[1].set(xlabel="epoch", ylabel="inner steps K", ylim=(0, 11))
        axes[0].legend(frameon=False)


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    if "--check" not in sys.argv:
        draw(ROOT / "docs" / "cifar10.svg")
    rewrite({ROOT / "README.md": {"headline": headline, "demo": table}}, "readme")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
