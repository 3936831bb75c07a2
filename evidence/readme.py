"""Writes the numbers and pictures of the README and of docs/index.md: python evidence/readme.py
(--check compares the numbers).

--measure first trains the demo if its results are missing: three seeds of both recipes, six minutes
on two cores.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equal_cost
import overview
import stored
from amata.report.figures import GREY, ORANGE
from equal_cost import STRICT, UNKNOWN
from measure import amata, store_run
from page import (
    GRADIENTS,
    attack_name,
    markdown,
    picture,
    plot_robust_error,
    refuse_others,
    rewrite,
)
from verdicts import ANSWERS, OPEN, claims, verdict

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "mnist5k"
CIFAR10 = {"pgd10": "PGD-10", "amata": "Amata 2→10"}
HEADLINE = "cifar10-headline"
PAPERS = {"pgd10": "PGD-10", "linear-2-10": "Amata 2→10", "k3": "constant 3"}
"""Arms of the paper's recipe."""
WITH_MUON = (
    ("cifar10-27s", "linear-2-3", "Amata 2→3"),
    ("cifar10-27s", "k2", "constant 2"),
    ("cifar10-1m", "linear-2-4", "Amata 2→4"),
    ("cifar10-5m", "linear-2-4", "Amata 2→4"),
    ("cifar10-5m", "k3", "constant 3"),
)
"""Studies with AutoAttack on all images: study, arm, name."""
RECIPES = {"mnist5k-pgd": "PGD-10", "mnist5k-amata": "Amata 2→10"}
ATTACKS = ("clean", "pgd-40", "cw-pgd-40")
COLUMNS = ("clean", "pgd-20", "cw-pgd-20", "apgd-t", STRICT)
"""Of the tables of the demo and of CIFAR-10. Of the last two each training has one."""


def measure() -> None:
    """Train the demo on three seeds."""
    if RESULTS.is_dir():
        return
    with tempfile.TemporaryDirectory() as folder:
        amata(
            "compare", *RECIPES, "--seeds", "3", "--set", "train.tensorboard=false", "--out", folder
        )
        for run in Path(folder, "runs").iterdir():
            store_run(run, RESULTS / run.name)


def paper_claims() -> str:
    """The paper's claims by verdict; of the open ones only their number."""
    stated, margin = claims()
    found: dict[str, list[str]] = {name: [] for name in ANSWERS}
    for claim in stated:
        if claim["source"] == "paper":
            decision, number, _ = verdict(claim, margin)
            found[decision].append(f"{claim['text']} ({number})")
    lines = [
        f"- **{name.capitalize()}.** {'. '.join(found[name])}." for name in found if name != OPEN
    ]
    few = "fewer than three seeds, a wide interval, or not measured"
    single = "With one seed, Amata with Free, Fast and ATTA did not do as the paper says"
    more = f"{single} ([more](docs/paper.md))."
    return "\n".join([*lines, f"- **Open.** {len(found[OPEN])} more claims: {few}. {more}"])


def trainings() -> Iterator[tuple[str, stored.Rows, str]]:
    """The paper's recipe with three K, and the fastest recipes: name, runs, strictest attack."""
    for title, name in PAPERS.items():
        runs = stored.summaries(HEADLINE)[title]
        yield f"{name} (`{HEADLINE}`)", runs, "apgd-t"
    for study, title, name in WITH_MUON:
        runs = stored.summaries(study)[title]
        few = ", one seed" if len(runs) == 1 else ""
        yield f"{name} with Muon (`{study}`{few})", runs, STRICT


def headline() -> str:
    """The trainings as a table; means over seeds."""
    rows = [headline_row(*training) for training in trainings()]
    head = ["training", *(f"{attack_name(attack)} %" for attack in COLUMNS), "seconds", GRADIENTS]
    return markdown(head, rows)


def headline_row(name: str, runs: stored.Rows, strictest: str) -> list[str]:
    known = (*COLUMNS[:3], strictest)
    return [
        name,
        *(stored.accuracy(runs, a) if a in known else UNKNOWN for a in COLUMNS),
        f"{stored.seconds(runs):.0f}",
        f"{stored.cost(runs):.2f}",
    ]


def summaries(recipe: str) -> list[dict[str, Any]]:
    return [stored.summary(run) for run in sorted(RESULTS.glob(f"{recipe}-seed*"))]


def demo() -> str:
    """The demo as sentences."""
    said, attack = [], ATTACKS[1]
    for recipe, title in RECIPES.items():
        runs = summaries(recipe)
        (cost,) = {r["grad_evals"] for r in runs}
        robust = 100 * stored.mean_accuracy(runs, attack)
        said.append(
            f"{title}: {robust:.1f}% {attack.upper()} accuracy with {cost:,} gradient evaluations, "
            f"{stored.seconds(runs):.0f} s"
        )
    n = runs[0]["evaluation"][attack]["n"]
    return (
        f"{'. '.join(said)}. Means of {len(runs)} seeds; an accuracy on {n:,} test digits is known "
        "to about ± 2 points."
    )


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
    """Robust error over time of both trainings on CIFAR-10, and their K over epochs."""
    with picture(path, 2, (8.4, 3.1)) as (error, steps):
        plot_robust_error(error, "cifar10", CIFAR10)
        error.set_ylim(50, None)
        for (title, name), colour in zip(CIFAR10.items(), (GREY, ORANGE), strict=True):
            rows = stored.epochs("cifar10", title)[0]
            steps.step(
                [row["epoch"] + 1 for row in rows],
                [row["steps"] for row in rows],
                where="mid",
                color=colour,
                lw=1.8,
                label=name,
            )
        steps.set(xlabel="epoch", ylabel="inner steps K", ylim=(0, 11))


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    if "--check" not in sys.argv:
        draw(ROOT / "docs" / "cifar10.svg")
        overview.draw(ROOT / "docs" / "cost.svg")
    parts = {
        "demo": demo,
        "equal-cost": equal_cost.table,
        "claims": paper_claims,
    }
    home = {"headline": headline, "demo": table}
    rewrite({ROOT / "README.md": parts, ROOT / "docs" / "index.md": home}, "readme")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
