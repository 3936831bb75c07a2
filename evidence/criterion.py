"""Tables of the criterion C on docs/control.md: on MNIST digits over three seeds, and on
CIFAR-10."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import stored
from definition import RESULTS as STUDIES_DIR
from page import markdown
from study import STUDIES

RESULTS = Path(__file__).parent / "results" / "control"
SEEDS = (0, 1, 2)
STRATEGIES = {
    "mnist5k-pgd": "Constant(10)",
    "mnist5k-pgd2": "Constant(2)",
    "mnist5k-amata": "Linear(2, 10)",
    "mnist5k-adaptive": "Adaptive",
}
ACCELERATED = {
    "mnist5k-pgd2": "Constant(2)",
    "mnist5k-free": "Free, m = 4",
    "mnist5k-amata-free": "Amata + Free, m = 2 → 4",
    "mnist5k-yopo": "YOPO, m = 5",
    "mnist5k-amata-yopo": "Amata + YOPO, m = 2 → 5",
}
METHODS = "criterion-methods"
"""C of methods with several updates or passes per batch, beside PGD: one scale. In its folder."""
CIFAR10 = "cifar10-control"

Row = dict[str, Any]
Studies = Sequence[Mapping[str, Row]]
"""What was measured of each strategy, by seed."""


def criteria() -> list[dict[str, Row]]:
    """The strategies of each seed, by name."""
    files = (RESULTS / f"criterion-seed{seed}" / "criterion.json" for seed in SEEDS)
    found = (json.loads(file.read_text())["strategies"] for file in files)
    return [{row["strategy"]: row for row in rows} for rows in found]


def settings() -> dict[str, Any]:
    file = RESULTS / f"criterion-seed{SEEDS[0]}" / "criterion.json"
    return dict(json.loads(file.read_text())["settings"])


def gamma_of(about: dict[str, Any]) -> float:
    """The gamma of C. Files from before the sweep have one."""
    return float(about["gammas"][0] if "gammas" in about else about["gamma"])


def table(
    titles: Mapping[str, str], studies: Studies, columns: Mapping[str, Callable[[Row], str]]
) -> str:
    """One row per strategy. A cell has one value per seed, or one if all are equal."""
    rows = []
    for name, title in titles.items():
        found = [[write(study[name]) for study in studies] for write in columns.values()]
        cells = [" · ".join(values if len(set(values)) > 1 else values[:1]) for values in found]
        rows.append([title, *cells])
    return markdown(["strategy", *columns], rows)


def named() -> dict[str, str]:
    return {recipe: f"{title} (`{recipe}`)" for recipe, title in STRATEGIES.items()}


def has(studies: Studies, key: str) -> bool:
    """Whether a number was measured; older files lack some."""
    return all(key in row for study in studies for row in study.values())


def measures(studies: Studies) -> dict[str, Callable[[Row], str]]:
    """The columns of C and of what it is compared with."""
    columns: dict[str, Callable[[Row], str]] = {
        "C": lambda r: f"{r['c']:.2f} ± {r['c_stderr']:.2f}",
        "C of the means": lambda r: f"{r['c_of_means']:.2f}",
        "FOSC": lambda r: f"{r['fosc']:#.2g}",
    }
    if has(studies, "feasible_gap"):
        columns["feasible gap"] = lambda r: f"{r['feasible_gap']:#.2g}"
    attack = next(iter(studies[0].values()))["robust_attack"].upper()
    columns[f"{attack} %"] = lambda r: f"{100 * r['robust_accuracy']:.1f}"
    columns["gradient evaluations"] = lambda r: f"{r['grad_evals']:,}"
    return columns


def sweep(titles: Mapping[str, str], studies: Studies) -> str:
    """C over gamma."""
    first = next(iter(studies[0].values()))["sweep"]
    gammas = sorted(at["gamma"] for at in first)
    return table(titles, studies, {f"C at γ = {g:g}": partial(c_at, g) for g in gammas})


def c_at(gamma: float, row: Row) -> str:
    return next(f"{at['c']:.2f}" for at in row["sweep"] if at["gamma"] == gamma)


def criterion_table() -> str:
    studies, about = criteria(), settings()
    n = studies[0]["mnist5k-amata"]["robust_n"]
    grid = f"K = 1 to {about['k_max']} with {about['alphas']} step sizes each"
    missing = "" if has(studies, "feasible_gap") else " The feasible gap was not measured yet."
    return (
        f"{table(named(), studies, measures(studies))}\n\nOne value per seed (0, 1, 2), or one if "
        f"all are equal. γ = {gamma_of(about)}; {about['batches']} probe batches; grid G: {grid}; "
        f"± is the standard error over the probe batches; {n:,} test digits.{missing} Files: "
        "`evidence/results/control/criterion-seed*/`."
    )


def terms_table() -> str:
    """C of the means as the sum of its two terms, and C over gamma where it was measured."""
    studies = criteria()
    text = (
        f"{table(named(), studies, terms())}\n\nOne value per seed (0, 1, 2). γ = "
        f"{gamma_of(settings())}; means over the epochs."
    )
    if not has(studies, "sweep"):
        return f"{text} C over other γ was not measured yet."
    return f"{text}\n\n{sweep(named(), studies)}"


def terms() -> dict[str, Callable[[Row], str]]:
    """The columns of C of the means and of its two terms."""
    return {
        "C of the means": lambda r: f"{r['c_of_means']:.2f}",
        "gradient term": lambda r: f"{r['c_of_means'] - price(r):.2f}",
        "price term γ(K − best K)": lambda r: f"{price(r):.2f}",
    }


def price(row: Row) -> float:
    """The mean over the epochs of what the steps of a control cost more than the best ones."""
    return row["gamma"] * statistics.mean(e["steps"] - e["best_steps"] for e in row["epochs"])


def methods_table() -> str:
    """Free and YOPO, one seed."""
    found = json.loads((RESULTS / METHODS / "criterion.json").read_text())
    rows, about = {row["strategy"]: row for row in found["strategies"]}, found["settings"]
    titles = {recipe: f"{title} (`{recipe}`)" for recipe, title in ACCELERATED.items()}
    return (
        f"{table(titles, [rows], measures([rows]))}\n\n{table(titles, [rows], terms())}\n\n"
        f"{sweep(titles, [rows])}\n\n"
        f"Seed {about['seed']}. γ = {gamma_of(about)} in the first two tables; {about['batches']} "
        f"probe batches; grid: K = 1 to {about['k_max']} with {about['alphas']} step sizes each. "
        f"Files: `evidence/results/control/{METHODS}/`."
    )


def cifar10_table() -> str:
    """The same on CIFAR-10, one seed."""
    own = STUDIES[CIFAR10]
    files = {title: STUDIES_DIR / CIFAR10 / f"criterion-{title}.json" for title in own.recipes}
    if not all(file.is_file() for file in files.values()):
        return stored.pending(CIFAR10)
    found = {t: json.loads(file.read_text())["strategies"][0] for t, file in files.items()}
    gamma = next(iter(found.values()))["gamma"]
    (_, command), *_ = own.after
    k_max, batches, alphas = (
        command[command.index(name) + 1] for name in ("--k-max", "--batches", "--alphas")
    )
    return (
        f"{table(own.labels, [found], measures([found]))}\n\n"
        f"{table(own.labels, [found], terms())}\n\n{sweep(own.labels, [found])}\n\n"
        f"CIFAR-10, 10 epochs, one seed. γ = {gamma:g} in the first two tables; {batches} probe "
        f"batches; grid: K = 1 to {k_max} with {alphas} step sizes each; ± is the standard error "
        f"over the probe batches. Files: `evidence/results/paper/{CIFAR10}/`."
    )
