"""The page's tables and pictures of MNIST: Table 1 with the criterion, YOPO and its first layer,
the landscapes."""

import json
import statistics
from typing import Any

import results
from amata.report.figures import INK, ORANGE
from amata.schedules import Control
from amata.studies.criterion import CriterionSettings, strategy_of
from layer_one import course_of
from page import markdown, picture

CRITERION = results.ROOT / "docs" / "criterion.svg"


def yopo_table() -> str:
    """Both forms of YOPO's layer one, and how often a training fell back to guessing."""
    rows = []
    for study, form in (("mnist-yopo", "as in its code"), ("mnist-yopo-paper", "as in its paper")):
        for title, runs in results.summaries(study).items():
            falls = sum(
                row.get("event") == "fall" for told in results.metrics(study, title) for row in told
            )
            name = {"yopo": "YOPO-5-10", "amata-yopo": "Amata 2 → 5 + YOPO"}[title]
            rows.append(
                [
                    name,
                    form,
                    results.accuracy(runs, "clean"),
                    results.accuracy(runs, "pgd-40"),
                    str(falls),
                    f"{results.seconds(runs):.1f}",
                ]
            )
    return (
        markdown(["", "layer one", "clean", "PGD-40", "fell back to guessing", "seconds"], rows)
        if rows
        else results.pending("mnist-yopo")
    )


LAYER_ONE = {
    "as in its code, 2 × 0.025": ("reference", Control(2, 0.025)),
    "as in its paper, 2 × 0.025": ("paper", Control(2, 0.025)),
    "as in its code, 2 × 0.01": ("reference", Control(2, 0.01)),
    "as in its code, 5 × 0.01": ("reference", Control(5, 0.01)),
}


def layer_one_table() -> str:
    """The share of the first layer's outputs that are active on held-out digits, and clean
    accuracy, after some steps."""
    rows = []
    for name, (form, u) in LAYER_ONE.items():
        course = [json.loads(line) for line in course_of(form, u).read_text().splitlines()]
        now = {
            row["step"]: f"{100 * row['active']:.1f}% ({100 * row['clean']:.0f}%)" for row in course
        }
        rows.append([name, *(now[step] for step in range(0, 501, 100))])
    return markdown(["layer one, m × σ", *(f"{step} steps" for step in range(0, 501, 100))], rows)


PAPER_MNIST = {
    "amata-5-40": ("Amata 5 → 40", 0.54, 91.47, 697.73),
    "amata-10-40": ("Amata 10 → 40", 0.68, 91.46, 760.16),
    "pgd10": ("PGD-10", 7.82, 68.07, 307.57),
    "pgd20": ("PGD-20", 1.52, 85.23, 567.11),
    "pgd40": ("PGD-40", 1.20, 90.56, 1086.31),
}


def criteria() -> dict[str, list[dict[str, Any]]]:
    """C of the epochs of each strategy, as many of them as were measured of all."""
    files = (results.RESULTS / "mnist-control" / "criterion").glob("*/*.criterion.json")
    found = {file.parent.name: json.loads(file.read_text())["epochs"] for file in files}
    common = min((len(epochs) for epochs in found.values()), default=0)
    return {title: epochs[:common] for title, epochs in found.items()}


def mnist_table() -> str:
    found = results.summaries("mnist")
    if not found:
        return results.pending("mnist")
    measured = criteria()
    rows = []
    for title, (name, c, robust, spent) in PAPER_MNIST.items():
        rows.append(
            [
                f"{name}, paper",
                f"{c:.2f}",
                f"{robust:.2f}",
                "",
                "",
                "",
                f"{spent:,.0f}",
                f"{spent / PAPER_MNIST['pgd40'][3]:.2f}",
            ]
        )
        if title in found:
            runs = found[title]
            own = strategy_of(measured[title]) if title in measured else None
            told = f"{own.c:.2f} ± {own.c_stderr:.2f}" if own else ""
            share = results.seconds(runs) / results.seconds(found["pgd40"])
            tested = [
                results.accuracy(runs, attack) for attack in ("pgd-40", "pgd-20", "pgd-60", "clean")
            ]
            rows.append(
                [f"**{name}**, ours", told, *tested, f"{results.seconds(runs):.1f}", f"{share:.2f}"]
            )
    written = markdown(
        ["", "C", "PGD-40", "PGD-20", "PGD-60", "clean", "seconds", "of PGD-40's"], rows
    )
    return f"{written}\n\n{about_criterion(measured)}" if measured else written


def about_criterion(measured: dict[str, list[dict[str, Any]]]) -> str:
    """What C is the mean of, and how the trainings went that it is of."""
    runs = results.summaries("mnist-control")
    robust = ", ".join(
        f"{PAPER_MNIST[title][0]} {results.accuracy(runs[title], 'pgd-40')}" for title in runs
    )
    falls = [
        f" {PAPER_MNIST[title][0]}'s fell back to guessing in epoch {row['epoch'] + 1}; it was "
        "made again, and the rate halved from there."
        for title in runs
        for row in results.metrics("mnist-control", title)[0]
        if row.get("event") == "fall"
    ]
    epochs, last = (
        next(iter(measured.values())),
        max(run["epochs"] for own in runs.values() for run in own),
    )
    return (
        f"C is the mean over epochs 1 to {len(epochs)} of {last}, those measured of all, and "
        f"{len(epochs[0]['per_batch'])} batches; ± is "
        "its standard error over the batches. The trainings it is of have PGD-40 accuracies "
        f"of their own: {robust}.{''.join(falls)}"
    )


def criterion_table() -> str:
    """What C is made of: how far K is from the best one at hand, and what the difference costs."""
    measured, rows = criteria(), []
    if not measured:
        return results.pending("mnist-control")
    for title in (title for title in PAPER_MNIST if title in measured):
        epochs = measured[title]
        k, best = [e["steps"] for e in epochs], [e["best_steps"] for e in epochs]
        numbers = [
            f"{strategy_of(epochs).c:.2f}",
            f"{statistics.median(e['c'] for e in epochs):.2f}",
            f"{statistics.mean(k):.1f}",
            f"{statistics.median(best):g}",
            f"{statistics.median(e['best_step_size'] for e in epochs):.3f}",
            f"{CriterionSettings.gamma * (statistics.mean(k) - statistics.mean(best)):.2f}",
        ]
        rows.append([PAPER_MNIST[title][0], *numbers])
    head = [
        "",
        "C, mean",
        "C, median",
        "K, mean",
        "best K, median",
        "best α, median",
        "γ (K − best K), mean",
    ]
    return f"{markdown(head, rows)}\n\n![C over epochs]({CRITERION.name})"


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
            course = [(e["epoch"] + 1, e["c"]) for e in measured[title]]
            ax.plot(
                *zip(*course, strict=True),
                color=colour,
                ls=dashes,
                lw=1.6,
                label=PAPER_MNIST[title][0],
            )
        ax.set(xlabel="epoch", ylabel="C", yscale="log", xlim=(1, None))
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def landscape_figures() -> str:
    figures = sorted((results.RESULTS / "mnist-control" / "landscape").glob("*.png"))
    return (
        "\n".join(f"![{f.stem}](../{f.relative_to(results.ROOT)})" for f in figures)
        if figures
        else results.pending("mnist-control")
    )
