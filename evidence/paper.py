"""The paper's experiments, measured anew.

python evidence/paper.py measure STUDY [WORK]  trains and evaluates into WORK (runs/paper), keeps
the small files in evidence/results/paper python evidence/paper.py                       rewrites
docs/paper.md and docs/criterion.svg from results (--check only compares the page) python
evidence/paper.py unpack PARQUET OUT    image folders of Tiny-ImageNet, for `measure tiny-... WORK
data.root=OUT`

An interrupted study goes on with the same command. Data sets are looked for in $AMATA_DATA.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import digits
import results
from page import markdown, rewrite
from study import STUDIES, measure, unpack

PAGE = results.ROOT / "docs" / "paper.md"


PAPER_CIFAR10 = {
    "erm": ("ERM", 94.75, 0.0, 0.23, 2099.58),
    "pgd2": ("PGD-2", 90.16, 31.70, 13.36, 6913.36),
    "pgd10": ("PGD-10", 85.27, 47.31, 51.73, 23108.10),
    "fat": ("FAT", 89.30, 41.34, 41.16, 14586.08),
    "fosc": ("FOSC", 85.29, 47.75, 47.70, 26126.98),
    "amata": ("Amata 2 → 10", 85.52, 47.62, 52.94, 14308.96),
}


def cifar10_table() -> str:
    found = results.summaries("cifar10") | results.summaries("cifar10-others")
    head = [
        "",
        "clean",
        "PGD-20",
        "CW-L2",
        "CW-PGD-20",
        "AutoAttack",
        "seconds",
        "of PGD-10's",
        "gradients an image and epoch",
        "seeds",
    ]
    rows = []
    reference = results.seconds(found["pgd10"])
    for title, (name, clean, robust, cw, spent) in PAPER_CIFAR10.items():
        share = spent / PAPER_CIFAR10["pgd10"][4]
        rows.append(
            [
                f"{name}, paper",
                f"{clean:.2f}",
                f"{robust:.2f}",
                f"{cw:.2f}",
                "",
                "",
                f"{spent:,.0f}",
                f"{share:.2f}",
                "",
                "",
            ]
        )
        if title not in found:
            continue
        runs = found[title]
        strong = results.autoattack(
            results.RESULTS
            / ("cifar10" if title in STUDIES["cifar10"].recipes else "cifar10-others"),
            title,
        )
        ours = [
            results.accuracy(runs, attack)
            for attack in ("clean", "pgd-20", "cw-l2-100@1000", "cw-pgd-20")
        ]
        spent = results.seconds(runs)
        last = [
            strong,
            f"{spent:.1f}",
            f"{spent / reference:.2f}",
            f"{results.cost(runs):.2f}",
            str(len(runs)),
        ]
        rows.append([f"**{name}**, ours", *ours, *last])
    share, spent = (
        results.cost(found["amata"]) / results.cost(found["pgd10"]),
        results.seconds(found["amata"]) / reference,
    )
    told = (
        f"Amata takes {share:.2f} of PGD-10's gradient evaluations, which is the paper's share "
        f"of time; ours is {spent:.2f}, since an "
        "update of the weights costs more than an attack step and is not annealed. AutoAttack "
        "was run on one seed of each, on 1,000 "
        "images: a point between two rows of it is chance."
    )
    return f"{markdown(head, rows)}\n\n{told}"


def race(
    study: str, pair: tuple[str, str], names: tuple[str, str], thresholds: Sequence[float]
) -> Callable[[], str]:
    """When two recipes first reach thresholds, and how long they take in all."""

    def write() -> str:
        found = results.summaries(study)
        if any(title not in found for title in pair):
            return results.pending(study)
        attack = results.held_out_attack(study, pair[0]).upper()
        rows = []
        for threshold in thresholds:
            times = [results.reached(study, title, threshold) for title in pair]
            if any(times):
                told = [f"{t:.1f} s" if t else "not reached" for t in times]
                rows.append(
                    [
                        f"{100 * threshold:.0f}%",
                        *told,
                        f"{times[0] / times[1]:.2f}" if times[0] and times[1] else "",
                    ]
                )
        a, b = (results.seconds(found[title]) for title in pair)
        ends = [
            f"{spent:.1f} s, {100 * results.highest(study, title):.1f}%"
            for spent, title in zip((a, b), pair, strict=True)
        ]
        rows.append(["the end, and the highest until then", *ends, f"{a / b:.2f}"])
        written = markdown([f"{attack} accuracy on held-out images", *names, "times faster"], rows)
        figure = results.RESULTS / study / "figures" / "robust-time.svg"
        if figure.is_file():
            written += (
                f"\n\n![robust error against training time](../{figure.relative_to(results.ROOT)})"
            )
        return written

    return write


def table(
    study: str,
    paper: Mapping[str, tuple[str, Sequence[str]]],
    columns: dict[str, str],
    *,
    timed: bool = True,
) -> Callable[[], str]:
    """A study's runs under some attacks, with the paper's row above each where it has one. Seconds
    only where they were taken alone."""

    def write() -> str:
        found = results.summaries(study)
        if not found:
            return results.pending(study)
        ends, rows = (["seconds"] if timed else []) + ["gradients an image and epoch"], []
        for title in STUDIES[study].recipes:
            name, values = paper.get(title, (title, ()))
            if values:
                rows.append(
                    [f"{name}, paper", *values, *[""] * (len(columns) + len(ends) - len(values))]
                )
            if title in found:
                runs = found[title]
                spent = [f"{results.seconds(runs):.1f}"] if timed else []
                rows.append(
                    [
                        f"**{name}**, ours",
                        *(results.accuracy(runs, attack) for attack in columns),
                        *spent,
                        f"{results.cost(runs):.2f}",
                    ]
                )
        return markdown(["", *columns.values(), *ends], rows)

    return write


FREE = {
    "free": ("Free", ("60.57", "32.1", "31.5", "31.3")),
    "amata-free": ("Amata 2 → 4 + Free", ("59.7", "31.8", "31.2", "31.0")),
}
CALTECH = {
    "pgd20": ("PGD-20", ("65.7", "29.7", "28.5", "28.5")),
    "amata-10-20": ("Amata 10 → 20", ("66.1", "29.6", "28.3", "28.3")),
}
FAST = {
    "fast": ("Fast", ()),
    "amata-fast": ("Amata+Fast, as worded", ()),
    "amata-fast-skip": ("Amata+Fast, skip", ()),
}
ATTA = {"atta": ("ATTA", ()), "amata-atta": ("Amata+ATTA", ())}
SHAPES = {
    "linear": ("linear", ()),
    **{f"exp-{eta}": (f"exponential, η = {eta}", ()) for eta in (0.1, 0.5, 1, 2, 5)},
}
ON_CIFAR10 = {
    "clean": "clean",
    "pgd-20": "PGD-20",
    "cw-pgd-20": "CW-PGD-20",
    "cw-l2-100@1000": "CW-L2",
}

PARTS = {
    "table-2": cifar10_table,
    "figure-2-left": race("cifar10", ("pgd10", "amata"), ("PGD-10", "Amata"), (0.35, 0.4, 0.45)),
    "table-1": digits.mnist_table,
    "criterion": digits.criterion_table,
    "figure-2-right": race(
        "mnist-yopo", ("yopo", "amata-yopo"), ("YOPO", "Amata+YOPO"), (0.8, 0.85, 0.9, 0.94)
    ),
    "yopo": digits.yopo_table,
    "layer-one": digits.layer_one_table,
    "imagenet": table(
        "tiny-free",
        FREE,
        {"clean": "clean", "pgd-10": "PGD-10", "pgd-20": "PGD-20", "pgd-50": "PGD-50"},
    ),
    "caltech": table(
        "tiny-pgd",
        CALTECH,
        {"clean": "clean", "pgd-5": "PGD-5", "pgd-20": "PGD-20", "pgd-100": "PGD-100"},
    ),
    "fast": table("cifar10-fast", FAST, ON_CIFAR10),
    "fast-times": race(
        "cifar10-fast",
        ("fast", "amata-fast-skip"),
        ("Fast", "Amata+Fast, skip"),
        (0.3, 0.35, 0.4, 0.44),
    ),
    "atta": table("cifar10-atta", ATTA, ON_CIFAR10),
    "atta-times": race(
        "cifar10-atta", ("atta", "amata-atta"), ("ATTA", "Amata+ATTA"), (0.3, 0.35, 0.4, 0.44)
    ),
    "shapes": table("mnist-shapes", SHAPES, {"clean": "clean", "pgd-40": "PGD-40"}, timed=False),
    "landscape": digits.landscape_figures,
}


def main(command: str = "", *rest: str) -> None:
    if command == "measure" and rest:
        name, work, *overrides = rest if len(rest) > 1 else (*rest, "runs/paper")
        if name not in STUDIES:
            sys.exit(f"error: there is no study {name!r}; there are {', '.join(STUDIES)}")
        measure(name, Path(work), results.RESULTS / name, overrides)
    elif command == "unpack" and len(rest) == 2:
        unpack(*map(Path, rest))
    elif command not in ("", "--check") or rest:
        sys.exit(f"error: this is not understood\n\n{__doc__}")
    else:
        if command != "--check" and digits.criteria():
            digits.draw_criterion()
        rewrite({PAGE: PARTS}, "paper")


if __name__ == "__main__":
    os.chdir(results.ROOT)
    main(*sys.argv[1:])
