"""The paper's experiments, measured anew.

python tools/paper.py measure STUDY [WORK]  trains and evaluates into WORK (runs/paper), keeps the small files in results/paper
python tools/paper.py                       rewrites docs/paper.md and docs/criterion.svg from results (--check only compares the page)
python tools/paper.py unpack PARQUET OUT    image folders of Tiny-ImageNet, for `measure tiny-... WORK data.root=OUT`

An interrupted study goes on with the same command. Data sets are looked for in $AMATA_DATA.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amata.schedules import Control
from amata.studies.criterion import strategy_of
from layer_one import course_of
from page import picture, rewrite
from study import STUDIES, measure, unpack

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "paper"
PAGE = ROOT / "docs" / "paper.md"
CRITERION = ROOT / "docs" / "criterion.svg"


def summaries(study: str) -> dict[str, list[dict[str, Any]]]:
    """The finished runs of a study by recipe, in the study's order."""
    found = {title: sorted((RESULTS / study).glob(f"runs/{title}-seed*/summary.json")) for title in STUDIES[study].recipes}
    return {title: [json.loads(file.read_text()) for file in files] for title, files in found.items() if files}


def mean(values: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """Their mean, with their standard deviation where there are several."""
    spread = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.mean(values):.{digits}f}{spread}"


def accuracy(runs: list[dict[str, Any]], attack: str) -> str:
    return mean([run["evaluation"][attack]["accuracy"] for run in runs], scale=100)


def autoattack(folder: Path, title: str) -> str:
    """Under AutoAttack, on those runs of a recipe on which it was run; nothing, where it was on none."""
    files = sorted(folder.glob(f"autoattack-{title}-seed*.json"))
    found = [json.loads(file.read_text())["autoattack@1000"]["accuracy"] for file in files]
    return mean(found, 1, 100) if found else ""


def seconds(runs: list[dict[str, Any]]) -> float:
    return statistics.mean(run["train_seconds"] for run in runs)


def metrics(study: str, title: str) -> list[list[dict[str, Any]]]:
    """What each run told of its epochs."""
    files = sorted((RESULTS / study).glob(f"runs/{title}-seed*/metrics.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def held_out_attack(study: str, title: str) -> str:
    """The attack under which held-out images were watched."""
    return next(name for rows in metrics(study, title) for row in rows for name in row.get("valid", {}) if name != "clean")


def reached(study: str, title: str, threshold: float) -> list[float | None]:
    """For each run: seconds until the held-out robust accuracy first was at least this."""
    attack = held_out_attack(study, title)
    return [
        next((row["train_seconds"] for row in rows if row.get("valid", {}).get(attack, 0) >= threshold), None)
        for rows in metrics(study, title)
    ]


def highest(study: str, title: str) -> float:
    """The highest held-out robust accuracy, averaged over the runs."""
    attack = held_out_attack(study, title)
    return statistics.mean(max(row.get("valid", {}).get(attack, 0) for row in rows) for rows in metrics(study, title))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def pending(study: str) -> str:
    return f"Not measured yet: `python tools/paper.py measure {study}`."


PAPER_CIFAR10 = {
    "erm": ("ERM", 94.75, 0.0, 0.23, 2099.58),
    "pgd2": ("PGD-2", 90.16, 31.70, 13.36, 6913.36),
    "pgd10": ("PGD-10", 85.27, 47.31, 51.73, 23108.10),
    "fat": ("FAT", 89.30, 41.34, 41.16, 14586.08),
    "fosc": ("FOSC", 85.29, 47.75, 47.70, 26126.98),
    "amata": ("Amata 2 → 10", 85.52, 47.62, 52.94, 14308.96),
}


def cifar10_table() -> str:
    found = summaries("cifar10") | summaries("cifar10-others")
    head = ["", "clean", "PGD-20", "CW-L2", "CW-PGD-20", "AutoAttack", "seconds", "of PGD-10's", "gradients an image and epoch", "seeds"]
    rows = []
    reference = seconds(found["pgd10"])
    for title, (name, clean, robust, cw, spent) in PAPER_CIFAR10.items():
        share = spent / PAPER_CIFAR10["pgd10"][4]
        rows.append([f"{name}, paper", f"{clean:.2f}", f"{robust:.2f}", f"{cw:.2f}", "", "", f"{spent:,.0f}", f"{share:.2f}", "", ""])
        if title not in found:
            continue
        runs = found[title]
        strong = autoattack(RESULTS / ("cifar10" if title in STUDIES["cifar10"].recipes else "cifar10-others"), title)
        ours = [accuracy(runs, attack) for attack in ("clean", "pgd-20", "cw-l2-100@1000", "cw-pgd-20")]
        cost = f"{statistics.mean(run['grad_evals_per_image'] for run in runs):.2f}"
        spent = seconds(runs)
        last = [strong, f"{spent:.1f}", f"{spent / reference:.2f}", cost, str(len(runs))]
        rows.append([f"**{name}**, ours", *ours, *last])
    amata, pgd10 = (statistics.mean(run["grad_evals_per_image"] for run in found[title]) for title in ("amata", "pgd10"))
    share, spent = amata / pgd10, seconds(found["amata"]) / reference
    told = (
        f"Amata takes {share:.2f} of PGD-10's gradient evaluations, which is the paper's share of time; ours is {spent:.2f}, since an "
        "update of the weights costs more than an attack step and is not annealed. AutoAttack was run on one seed of each, on 1,000 "
        "images: a point between two rows of it is chance."
    )
    return f"{markdown(head, rows)}\n\n{told}"


def race(study: str, pair: tuple[str, str], names: tuple[str, str], thresholds: Sequence[float]) -> Callable[[], str]:
    """When two recipes first reach thresholds, and how long they take in all."""

    def write() -> str:
        found = summaries(study)
        if any(title not in found for title in pair):
            return pending(study)
        attack = held_out_attack(study, pair[0]).upper()
        rows = []
        for threshold in thresholds:
            both = [[t for t in reached(study, title, threshold) if t is not None] for title in pair]
            times = [statistics.mean(t) if len(t) == len(found[title]) else None for t, title in zip(both, pair, strict=True)]
            if any(times):
                told = [f"{t:.1f} s" if t else "not reached" for t in times]
                rows.append([f"{100 * threshold:.0f}%", *told, f"{times[0] / times[1]:.2f}" if times[0] and times[1] else ""])
        a, b = (seconds(found[title]) for title in pair)
        ends = [f"{spent:.1f} s, {100 * highest(study, title):.1f}%" for spent, title in zip((a, b), pair, strict=True)]
        rows.append(["the end, and the highest until then", *ends, f"{a / b:.2f}"])
        written = markdown([f"{attack} accuracy on held-out images", *names, "times faster"], rows)
        figure = RESULTS / study / "figures" / "robust-time.svg"
        if figure.is_file():
            written += f"\n\n![robust error against training time](../{figure.relative_to(ROOT)})"
        return written

    return write


def table(study: str, paper: Mapping[str, tuple[str, Sequence[str]]], columns: dict[str, str], *, timed: bool = True) -> Callable[[], str]:
    """A study's runs under some attacks, with the paper's row above each where it has one. Seconds only where they were taken alone."""

    def write() -> str:
        found = summaries(study)
        if not found:
            return pending(study)
        ends, rows = (["seconds"] if timed else []) + ["gradients an image and epoch"], []
        for title in STUDIES[study].recipes:
            name, values = paper.get(title, (title, ()))
            if values:
                rows.append([f"{name}, paper", *values, *[""] * (len(columns) + len(ends) - len(values))])
            if title in found:
                runs = found[title]
                cost = f"{statistics.mean(run['grad_evals_per_image'] for run in runs):.2f}"
                spent = [f"{seconds(runs):.1f}"] if timed else []
                rows.append([f"**{name}**, ours", *(accuracy(runs, attack) for attack in columns), *spent, cost])
        return markdown(["", *columns.values(), *ends], rows)

    return write


def yopo_table() -> str:
    """Both forms of YOPO's layer one, and how often a training fell back to guessing."""
    rows = []
    for study, form in (("mnist-yopo", "as in its code"), ("mnist-yopo-paper", "as in its paper")):
        for title, runs in summaries(study).items():
            falls = sum(row.get("event") == "fall" for told in metrics(study, title) for row in told)
            name = {"yopo": "YOPO-5-10", "amata-yopo": "Amata 2 → 5 + YOPO"}[title]
            rows.append([name, form, accuracy(runs, "clean"), accuracy(runs, "pgd-40"), str(falls), f"{seconds(runs):.1f}"])
    return markdown(["", "layer one", "clean", "PGD-40", "fell back to guessing", "seconds"], rows) if rows else pending("mnist-yopo")


LAYER_ONE = {
    "as in its code, 2 × 0.025": ("reference", Control(2, 0.025)),
    "as in its paper, 2 × 0.025": ("paper", Control(2, 0.025)),
    "as in its code, 2 × 0.01": ("reference", Control(2, 0.01)),
    "as in its code, 5 × 0.01": ("reference", Control(5, 0.01)),
}


def layer_one_table() -> str:
    """The share of the first layer's outputs that are active on held-out digits, and clean accuracy, after some steps."""
    rows = []
    for name, (form, u) in LAYER_ONE.items():
        course = [json.loads(line) for line in course_of(form, u).read_text().splitlines()]
        now = {row["step"]: f"{100 * row['active']:.1f}% ({100 * row['clean']:.0f}%)" for row in course}
        rows.append([name, *(now[step] for step in range(0, 501, 100))])
    return markdown(["layer one, m × σ", *(f"{step} steps" for step in range(0, 501, 100))], rows)


PAPER_MNIST = {
    "amata-5-40": ("Amata 5 → 40", 0.54, 91.47, 697.73),
    "amata-10-40": ("Amata 10 → 40", 0.68, 91.46, 760.16),
    "pgd10": ("PGD-10", 7.82, 68.07, 307.57),
    "pgd20": ("PGD-20", 1.52, 85.23, 567.11),
    "pgd40": ("PGD-40", 1.20, 90.56, 1086.31),
}


GAMMA = 0.04
"""The price of a step, the paper's and the command's own."""


def criteria() -> dict[str, list[dict[str, Any]]]:
    """C of the epochs of each strategy, as many of them as were measured of all."""
    files = (RESULTS / "mnist-control" / "criterion").glob("*/*.criterion.json")
    found = {file.parent.name: json.loads(file.read_text())["epochs"] for file in files}
    common = min((len(epochs) for epochs in found.values()), default=0)
    return {title: epochs[:common] for title, epochs in found.items()}


def mnist_table() -> str:
    found = summaries("mnist")
    if not found:
        return pending("mnist")
    measured = criteria()
    rows = []
    for title, (name, c, robust, spent) in PAPER_MNIST.items():
        rows.append([f"{name}, paper", f"{c:.2f}", f"{robust:.2f}", "", "", "", f"{spent:,.0f}", f"{spent / PAPER_MNIST['pgd40'][3]:.2f}"])
        if title in found:
            runs = found[title]
            own = strategy_of(measured[title]) if title in measured else None
            told = f"{own.c:.2f} ± {own.c_stderr:.2f}" if own else ""
            share = seconds(runs) / seconds(found["pgd40"])
            tested = [accuracy(runs, attack) for attack in ("pgd-40", "pgd-20", "pgd-60", "clean")]
            rows.append([f"**{name}**, ours", told, *tested, f"{seconds(runs):.1f}", f"{share:.2f}"])
    written = markdown(["", "C", "PGD-40", "PGD-20", "PGD-60", "clean", "seconds", "of PGD-40's"], rows)
    return f"{written}\n\n{about_criterion(measured)}" if measured else written


def about_criterion(measured: dict[str, list[dict[str, Any]]]) -> str:
    """What C is the mean of, and how the trainings went that it is of."""
    runs = summaries("mnist-control")
    robust = ", ".join(f"{PAPER_MNIST[title][0]} {accuracy(runs[title], 'pgd-40')}" for title in runs)
    falls = [
        f" {PAPER_MNIST[title][0]}'s fell back to guessing in epoch {row['epoch'] + 1}; it was made again, and the rate halved from there."
        for title in runs
        for row in metrics("mnist-control", title)[0]
        if row.get("event") == "fall"
    ]
    epochs, last = next(iter(measured.values())), max(run["epochs"] for own in runs.values() for run in own)
    return (
        f"C is the mean over epochs 1 to {len(epochs)} of {last}, those measured of all, and {len(epochs[0]['per_batch'])} batches; ± is "
        f"its standard error over the batches. The trainings it is of have PGD-40 accuracies of their own: {robust}.{''.join(falls)}"
    )


def criterion_table() -> str:
    """What C is made of: how far K is from the best one at hand, and what the difference costs."""
    measured, rows = criteria(), []
    if not measured:
        return pending("mnist-control")
    for title in (title for title in PAPER_MNIST if title in measured):
        epochs = measured[title]
        k, best = [e["steps"] for e in epochs], [e["best_steps"] for e in epochs]
        numbers = [
            f"{strategy_of(epochs).c:.2f}",
            f"{statistics.median(e['c'] for e in epochs):.2f}",
            f"{statistics.mean(k):.1f}",
            f"{statistics.median(best):g}",
            f"{statistics.median(e['best_step_size'] for e in epochs):.3f}",
            f"{GAMMA * (statistics.mean(k) - statistics.mean(best)):.2f}",
        ]
        rows.append([PAPER_MNIST[title][0], *numbers])
    head = ["", "C, mean", "C, median", "K, mean", "best K, median", "best α, median", "γ (K − best K), mean"]
    return f"{markdown(head, rows)}\n\n![C over epochs]({CRITERION.relative_to(PAGE.parent)})"


def draw_criterion() -> None:
    lines = {
        "pgd10": ("#9ca3af", "--"),
        "pgd20": ("#6b7280", "-."),
        "pgd40": ("#1f2937", "-"),
        "amata-10-40": ("#ea8a4f", "--"),
        "amata-5-40": ("#c2410c", "-"),
    }
    measured = criteria()
    with picture(CRITERION, 1, 7, 3.4) as (ax,):
        for title, (colour, dashes) in lines.items():
            if title not in measured:
                continue
            course = [(e["epoch"] + 1, e["c"]) for e in measured[title]]
            ax.plot(*zip(*course, strict=True), color=colour, ls=dashes, lw=1.6, label=PAPER_MNIST[title][0])
        ax.set(xlabel="epoch", ylabel="C", yscale="log", xlim=(1, None))
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def landscape_figures() -> str:
    figures = sorted((RESULTS / "mnist-control" / "landscape").glob("*.png"))
    return "\n".join(f"![{f.stem}](../{f.relative_to(ROOT)})" for f in figures) if figures else pending("mnist-control")


FREE = {
    "free": ("Free", ("60.57", "32.1", "31.5", "31.3")),
    "amata-free": ("Amata 2 → 4 + Free", ("59.7", "31.8", "31.2", "31.0")),
}
CALTECH = {
    "pgd20": ("PGD-20", ("65.7", "29.7", "28.5", "28.5")),
    "amata-10-20": ("Amata 10 → 20", ("66.1", "29.6", "28.3", "28.3")),
}
FAST = {"fast": ("Fast", ()), "amata-fast": ("Amata+Fast, as worded", ()), "amata-fast-skip": ("Amata+Fast, skip", ())}
ATTA = {"atta": ("ATTA", ()), "amata-atta": ("Amata+ATTA", ())}
SHAPES = {"linear": ("linear", ()), **{f"exp-{eta}": (f"exponential, η = {eta}", ()) for eta in (0.1, 0.5, 1, 2, 5)}}
ON_CIFAR10 = {"clean": "clean", "pgd-20": "PGD-20", "cw-pgd-20": "CW-PGD-20", "cw-l2-100@1000": "CW-L2"}

PARTS = {
    "table-2": cifar10_table,
    "figure-2-left": race("cifar10", ("pgd10", "amata"), ("PGD-10", "Amata"), (0.35, 0.4, 0.45)),
    "table-1": mnist_table,
    "criterion": criterion_table,
    "figure-2-right": race("mnist-yopo", ("yopo", "amata-yopo"), ("YOPO", "Amata+YOPO"), (0.8, 0.85, 0.9, 0.94)),
    "yopo": yopo_table,
    "layer-one": layer_one_table,
    "imagenet": table("tiny-free", FREE, {"clean": "clean", "pgd-10": "PGD-10", "pgd-20": "PGD-20", "pgd-50": "PGD-50"}),
    "caltech": table("tiny-pgd", CALTECH, {"clean": "clean", "pgd-5": "PGD-5", "pgd-20": "PGD-20", "pgd-100": "PGD-100"}),
    "fast": table("cifar10-fast", FAST, ON_CIFAR10),
    "fast-times": race("cifar10-fast", ("fast", "amata-fast-skip"), ("Fast", "Amata+Fast, skip"), (0.3, 0.35, 0.4, 0.44)),
    "atta": table("cifar10-atta", ATTA, ON_CIFAR10),
    "atta-times": race("cifar10-atta", ("atta", "amata-atta"), ("ATTA", "Amata+ATTA"), (0.3, 0.35, 0.4, 0.44)),
    "shapes": table("mnist-shapes", SHAPES, {"clean": "clean", "pgd-40": "PGD-40"}, timed=False),
    "landscape": landscape_figures,
}


def main(command: str = "", *rest: str) -> None:
    if command == "measure" and rest:
        name, work, *overrides = rest if len(rest) > 1 else (*rest, "runs/paper")
        if name not in STUDIES:
            sys.exit(f"error: there is no study {name!r}; there are {', '.join(STUDIES)}")
        measure(name, Path(work), RESULTS / name, overrides)
    elif command == "unpack" and len(rest) == 2:
        unpack(*map(Path, rest))
    elif command not in ("", "--check") or rest:
        sys.exit(f"error: this is not understood\n\n{__doc__}")
    else:
        if command != "--check" and criteria():
            draw_criterion()
        rewrite({PAGE: PARTS}, "paper")


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
