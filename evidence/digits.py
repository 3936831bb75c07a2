"""The MNIST parts of docs/paper.md: Table 1 with the criterion, YOPO and its first layer, the
landscape."""

import json
import math
import statistics
from typing import Any

import stored
from amata.report.comparison import WINDOW, smooth
from amata.report.figures import INK, ORANGE
from amata.schedules import Control
from amata.studies.criterion import CriterionSettings, strategy_of
from definition import RESULTS, ROOT
from layer_one import curve_of
from page import markdown, picture

CRITERION = ROOT / "docs" / "criterion.svg"


def yopo_table() -> str:
    """Both forms of YOPO's first-layer gradient, and how often a run collapsed to chance."""
    rows = []
    for study, form in (("mnist-yopo", "code"), ("mnist-yopo-paper", "paper")):
        for title, runs in stored.summaries(study).items():
            name = {"yopo": "YOPO-5-10", "amata-yopo": "Amata 2 → 5 + YOPO"}[title]
            rows.append(
                [
                    name,
                    form,
                    stored.accuracy(runs, "clean"),
                    stored.accuracy(runs, "pgd-40"),
                    str(len(stored.chance_collapses(study, title))),
                    f"{stored.seconds(runs):.1f}",
                ]
            )
    head = ["", "first-layer gradient", "clean", "PGD-40", "collapses to chance", "seconds"]
    return markdown(head, rows) if rows else stored.pending("mnist-yopo")


LAYER_ONE = {
    "code, sum, 2 × 0.025": ("reference", Control(2, 0.025)),
    "paper, sum, 2 × 0.025": ("paper", Control(2, 0.025)),
    "code, sum, 2 × 0.01": ("reference", Control(2, 0.01)),
    "code, sum, 5 × 0.01": ("reference", Control(5, 0.01)),
    "code, mean, 2 × 0.025": ("reference-mean", Control(2, 0.025)),
    "code, mean, 2 × 0.01": ("reference-mean", Control(2, 0.01)),
}


def layer_one_table() -> str:
    """The share of active first-layer outputs on held-out digits, and clean accuracy, by step."""
    rows = []
    for name, (form, u) in LAYER_ONE.items():
        curve = [json.loads(line) for line in curve_of(form, u).read_text().splitlines()]
        now = {
            row["step"]: f"{100 * row['active']:.1f}% ({100 * row['clean']:.0f}%)" for row in curve
        }
        rows.append([name, *(now[step] for step in range(0, 501, 100))])
    return markdown(["gradient, m × σ", *(f"{step} steps" for step in range(0, 501, 100))], rows)


PAPER_MNIST = {
    "amata-5-40": ("Amata 5 → 40", 0.54, 91.47, 697.73),
    "amata-10-40": ("Amata 10 → 40", 0.68, 91.46, 760.16),
    "pgd10": ("PGD-10", 7.82, 68.07, 307.57),
    "pgd20": ("PGD-20", 1.52, 85.23, 567.11),
    "pgd40": ("PGD-40", 1.20, 90.56, 1086.31),
}
"""Name, C, PGD-40 accuracy and seconds in the paper's Table 1."""


def criteria() -> dict[str, list[dict[str, Any]]]:
    """C per epoch of each strategy, over the epochs measured for all of them."""
    files = (RESULTS / "mnist-control" / "criterion").glob("*/*.criterion.json")
    found = {file.parent.name: json.loads(file.read_text())["epochs"] for file in files}
    common = min((len(epochs) for epochs in found.values()), default=0)
    return {title: epochs[:common] for title, epochs in found.items()}


def mnist_table() -> str:
    found = stored.summaries("mnist")
    if not found:
        return stored.pending("mnist")
    measured = criteria()
    rows = []
    for title, (name, c, robust, spent) in PAPER_MNIST.items():
        share = spent / PAPER_MNIST["pgd40"][3]
        times = f"{spent:,.0f}", f"{share:.2f}"
        rows.append([f"{name}, paper", f"{c:.2f}", f"{robust:.2f}", "", "", "", *times])
        if title in found:
            runs = found[title]
            own = strategy_of(measured[title]) if title in measured else None
            share = stored.seconds(runs) / stored.seconds(found["pgd40"])
            rows.append(
                [
                    f"**{name}**, ours",
                    f"{own.c:.2f} ± {own.c_stderr:.2f}" if own else "",
                    *(stored.accuracy(runs, a) for a in ("pgd-40", "pgd-20", "pgd-60", "clean")),
                    f"{stored.seconds(runs):.1f}",
                    f"{share:.2f}",
                ]
            )
    head = ["", "C", "PGD-40", "PGD-20", "PGD-60", "clean", "seconds", "relative to PGD-40"]
    written = markdown(head, rows)
    return f"{written}\n\n{about_criterion(measured)}" if measured else written


def about_criterion(measured: dict[str, list[dict[str, Any]]]) -> str:
    """How C was averaged, and the runs that it comes from."""
    runs = stored.summaries("mnist-control")
    robust = ", ".join(
        f"{PAPER_MNIST[title][0]} {stored.accuracy(runs[title], 'pgd-40')}" for title in runs
    )
    collapses = [
        f" {PAPER_MNIST[title][0]} collapsed to chance accuracy in epoch {row['epoch'] + 1}; "
        "the epoch was repeated with half the learning rate."
        for title in runs
        for row in stored.chance_collapses("mnist-control", title)
    ]
    epochs = next(iter(measured.values()))
    last = max(run["epochs"] for own in runs.values() for run in own)
    return (
        f"C is the mean over {len(epochs[0]['per_batch'])} batches and epochs 1 to {len(epochs)} "
        f"of {last}, the epochs measured for all five. ± is its standard error over the batches. "
        f"C comes from separate runs; their PGD-40 accuracies are: {robust}.{''.join(collapses)}"
    )


def criterion_table() -> str:
    """The parts of C: the distance of K from the best K of the grid, and its cost."""
    measured, rows = criteria(), []
    if not measured:
        return stored.pending("mnist-control")
    for title in (title for title in PAPER_MNIST if title in measured):
        epochs = measured[title]
        k, best = [e["steps"] for e in epochs], [e["best_steps"] for e in epochs]
        numbers = [
            f"{strategy_of(epochs).c:.2f}",
            f"{statistics.median(e['c'] for e in epochs):.2f}",
            f"{statistics.mean(k):.1f}",
            f"{statistics.median(best):g}",
            f"{statistics.median(e['best_step_size'] for e in epochs):.3f}",
            f"{CriterionSettings.gammas[0] * (statistics.mean(k) - statistics.mean(best)):.2f}",
        ]
        rows.append([PAPER_MNIST[title][0], *numbers])
    head = ["", "C, mean", "C, median", "K, mean", "best K, median", "best α, median"]
    table = markdown([*head, "γ (K − best K), mean"], rows)
    return f"{table}\n\n![C over epochs]({CRITERION.name})"


def draw_criterion() -> None:
    lines = {
        "pgd10": ("#9ca3af", "--"),
        "pgd20": ("#6b7280", "-."),
        "pgd40": (INK, "-"),
        "amata-10-40": ("#ea8a4f", "--"),
        "amata-5-40": (ORANGE, "-"),
    }
    measured = criteria()
    with picture(CRITERION, 1, (7, 3.4)) as (ax,):
        for title, (colour, dashes) in lines.items():
            if title not in measured:
                continue
            epochs = [e["epoch"] + 1 for e in measured[title]]
            values = [e["c"] for e in measured[title]]
            ax.plot(epochs, values, "o", color=colour, ms=2.5, alpha=0.5)
            means = [math.exp(v) for v in smooth([math.log(v) for v in values])]
            ax.plot(epochs, means, color=colour, ls=dashes, lw=1.6, label=PAPER_MNIST[title][0])
        ax.set(
            xlabel="epoch",
            ylabel=f"C, geometric mean of {WINDOW} epochs",
            yscale="log",
            xlim=(0.5, None),
        )
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def landscape_figure() -> str:
    figure = RESULTS / "mnist-control" / "landscape" / "landscape.png"
    return (
        f"![loss around one digit, with the paths of three attacks](../{figure.relative_to(ROOT)})"
        if figure.is_file()
        else stored.pending("mnist-control")
    )
