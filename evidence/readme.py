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

import overview
import stored
from amata.report.figures import GREY, ORANGE
from definition import RESULTS as STUDIES_DIR
from definition import Test
from differences import collapsed, difference
from measure import amata, store_run
from page import GRADIENTS, markdown, picture, plot_robust_error, refuse_others, rewrite
from study import STUDIES
from study_section import test_name
from verdicts import ANSWERS, CONFIRMED, NOT_REPRODUCED, OPEN, at_equal_cost, claims, verdict

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "mnist5k"
CIFAR10 = {"pgd10": "PGD-10", "amata": "Amata 2→10"}
WITH_MUON = (
    ("cifar10-27s", "linear-2-3", "Amata 2→3"),
    ("cifar10-27s", "k2", "constant 2"),
    ("cifar10-1m", "linear-2-4", "Amata 2→4"),
)
"""Studies with AutoAttack on all images: study, arm, name."""
WORST_FIRST = (NOT_REPRODUCED, OPEN, CONFIRMED)
SHORT = {
    "cifar10-equal-cost": "paper's, 30 epochs",
    "cifar10-paper-recipe": "paper's, 30 epochs",
    "cifar10-quick-equal-cost": "fast",
    "cifar10-fast-recipe": "fast, tuned",
    "cifar10-eps16": "fast, ε = 16/255",
    "cifar10-20s": "fast, tuned",
    "cifar10-13s": "fast, tuned",
    "cifar10-13s-ema": "fast, tuned",
    "cifar10-13s-again": "fast",
    "cifar10-18s": "`cifar10-20s`",
    "cifar10-27s": "fast, tuned",
    "cifar10-27s-tuning": "fast, tuned",
    "cifar10-1m": "`cifar10-1m`, 50 s",
    "mnist-equal-cost": "MNIST",
    "mnist-few-steps": "MNIST",
    "mnist5k-equal-cost": "5,000 digits, CPU",
    "mnist5k-again": "5,000 digits, CPU",
    "mnist5k-order": "5,000 digits, CPU",
    "mnist5k-autoattack": "5,000 digits",
    "tiny-equal-cost": "Tiny-ImageNet, 40 classes",
}
"""The recipes of the studies, as the README's table names them, with seconds where these are what
is equal."""
STRICT = "autoattack"
MARGIN = "CW-PGD-20"
"""Another attack of the table, where it is known."""
UNKNOWN = "–"
RECIPES = {"mnist5k-pgd": "PGD-10", "mnist5k-amata": "Amata 2→10"}
ATTACKS = ("clean", "pgd-40", "cw-pgd-40")


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


def equal_cost() -> str:
    """Annealed arms beside the constants of equal cost, as far as they are measured, and how many
    annealed arms of all studies are better than every constant of their cost."""
    stated, margin = claims()
    rows: list[list[str]] = []
    answers: dict[tuple[str, str], str] = {}
    strict: dict[tuple[str, str], str] = {}  # the same, under AutoAttack
    seeds: list[int] = []
    lost: list[str] = []
    worse: list[str] = []
    for claim in stated:
        if (found := at_equal_cost(claim)) is None:
            continue
        answer, arm = verdict(claim, margin)[0], (found[0], found[1].arm)
        kept = strict if claim["attack"] == STRICT else answers
        kept[arm] = min(answer, kept.get(arm, answer), key=WORST_FIRST.index)
        if claim.get("readme"):
            others = (difference(*found, MARGIN.lower()), under_autoattack(claim, *found, margin))
            row = equal_row(*found, claim["attack"])
            rows.append([*row, ANSWERS[answer], *(unbroken(other or UNKNOWN) for other in others)])
            seeds.append(len(stored.summaries(found[0])[found[1].arm]))
            lost += lost_seeds(*found)
        gain = difference(*found, claim["attack"])
        if kept is answers and gain and gain.high < 0:
            name = SHORT.get(found[0], f"`{found[0]}`")
            worse.append(f"{name}: {test_name(*found)}, {gain}")
    head = [
        "recipe",
        "annealed",
        "constant",
        "robust %",
        "difference",
        "better?",
        MARGIN,
        "AutoAttack",
    ]
    known = [column for column in zip(head, *rows, strict=True) if set(column[1:]) != {UNKNOWN}]
    head, *rows = map(list, zip(*known, strict=True))
    harm = f" (worse: {'; '.join(worse)})" if worse else ""
    were = "1 of them was" if len(strict) == 1 else f"{len(strict)} of them were"
    too = f" Under AutoAttack {were} compared: {counted(strict)}." if strict else ""
    return (
        f"{markdown(head, rows)}\n\n{' '.join([seeds_of(seeds), *dict.fromkeys(lost)])} The table "
        f"shows {len(rows)} of {len(answers)} arms that were compared at equal cost "
        f"([all](docs/claims.md)). Annealing is {counted(answers, harm)}; the number of tests is "
        f"not corrected for.{too}"
    )


def counted(answers: dict[tuple[str, str], str], harm: str = "") -> str:
    """How many arms have which verdict, in words."""
    found = {name: [*answers.values()].count(name) for name in ANSWERS}
    return (
        f"better in {found[CONFIRMED]}, not in {found[NOT_REPRODUCED]}{harm}, and {found[OPEN]} "
        f"{'is' if found[OPEN] == 1 else 'are'} open"
    )


def under_autoattack(claim: dict[str, Any], study: str, pair: Test, margin: float) -> str:
    """What AutoAttack says on a claim about another attack, where that is known."""
    if claim["attack"] == STRICT or (found := difference(study, pair, STRICT)) is None:
        return ""
    same = {**claim, "attack": STRICT, "tests": [[study, pair.arm, pair.against]]}
    return f"{found}: {ANSWERS[verdict(same, margin)[0]]}"


def unbroken(difference: object) -> str:
    """On one line, also in a narrow column."""
    return str(difference).replace(" ", "\N{NO-BREAK SPACE}")


def seeds_of(counts: list[int]) -> str:
    few, many = min(counts), max(counts)
    return f"Seeds per arm: {few if few == many else f'{few} to {many}'}."


def lost_seeds(study: str, pair: Test) -> list[str]:
    """What is to be said of the seeds that collapsed, and of those that were rolled back."""
    said = []
    for title in (pair.arm, pair.against):
        if title not in STUDIES[study].labels:
            continue  # the line of constants
        runs, label = stored.summaries(study)[title], STUDIES[study].labels[title]
        told = {
            f"of {label} collapsed": len(collapsed(study)[title]),
            f"of {label} were rolled back, with one more step from then": sum(
                run["rolled_back"] > 0 for run in runs
            ),
        }
        said += [
            f"{n} of {len(runs)} seeds {what} ({SHORT[study]})." for what, n in told.items() if n
        ]
    return said


def equal_row(study: str, pair: Test, attack: str) -> list[str]:
    own, runs = STUDIES[study], stored.summaries(study)
    found = difference(study, pair, attack)
    assert found is not None
    arm = runs[pair.arm]
    robust = 100 * stored.mean_accuracy(arm, attack)
    return [
        SHORT[study] + (f", {stored.seconds(arm):.0f} s" if own.equal_seconds else ""),
        own.labels[pair.arm].removeprefix("linear "),
        own.labels.get(pair.against, "line").removeprefix("constant "),
        f"{robust:.2f} / {robust - found.mean:.2f}",
        unbroken(found),
    ]


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


def autoattack() -> str:
    """The headline's AutoAttack and time, as a sentence."""
    said = [
        f"{name} {accuracy}%, {stored.seconds(runs):.0f} s" for name, runs, accuracy in trainings()
    ]
    return f"{'; '.join(said)}. The recipes with Muon differ in much besides K."


def trainings() -> Iterator[tuple[str, stored.Rows, str]]:
    """PGD-10 and Amata on CIFAR-10, and the fastest recipes: name, runs, AutoAttack."""
    found, folder = stored.summaries("cifar10"), STUDIES_DIR / "cifar10"
    for title, name in CIFAR10.items():
        yield (
            f"{name}, 30 epochs (`cifar10-{title}`)",
            found[title],
            stored.autoattack(folder, title),
        )
    for study, title, name in WITH_MUON:
        runs = stored.summaries(study)[title]
        yield f"{name} with Muon (study `{study}`)", runs, stored.accuracy(runs, STRICT)


def headline() -> str:
    """The trainings as a table; means over seeds."""
    rows = [headline_row(*training) for training in trainings()]
    head = ["training", "clean %", "PGD-20 %", "CW-PGD-20 %", "AutoAttack %", "seconds", GRADIENTS]
    return markdown(head, rows)


def headline_row(name: str, runs: stored.Rows, autoattack: str) -> list[str]:
    if not autoattack:
        sys.exit(f"error: AutoAttack of {name} is missing")
    accuracies = [stored.accuracy(runs, attack) for attack in ("clean", "pgd-20", "cw-pgd-20")]
    return [
        name,
        *accuracies,
        autoattack,
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
        "equal-cost": equal_cost,
        "autoattack": autoattack,
        "claims": paper_claims,
    }
    home = {"headline": headline, "demo": table}
    rewrite({ROOT / "README.md": parts, ROOT / "docs" / "index.md": home}, "readme")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
