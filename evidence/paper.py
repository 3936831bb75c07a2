"""Writes the tables and pictures of docs/paper.md: python evidence/paper.py (--check compares the
tables)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import digits
import stored
from definition import RESULTS, ROOT
from page import GRADIENTS, markdown, picture, plot_robust_error, refuse_others, rewrite
from study import STUDIES

DOCS = ROOT / "docs"

PAPER_CIFAR10 = {
    "erm": ("ERM", 94.75, 0.0, 0.23, 2099.58),
    "pgd2": ("PGD-2", 90.16, 31.70, 13.36, 6913.36),
    "pgd10": ("PGD-10", 85.27, 47.31, 51.73, 23108.10),
    "fat": ("FAT", 89.30, 41.34, 41.16, 14586.08),
    "fosc": ("FOSC", 85.29, 47.75, 47.70, 26126.98),
    "amata": ("Amata 2 → 10", 85.52, 47.62, 52.94, 14308.96),
}
"""Name, clean, PGD-20 and CW-L2 accuracy, and seconds in the paper's Table 2."""


def cifar10_table() -> str:
    found = stored.summaries("cifar10") | stored.summaries("cifar10-others")
    head = [
        "",
        "clean",
        "PGD-20",
        "CW-L2",
        "CW-PGD-20",
        "AutoAttack",
        "seconds",
        "relative to PGD-10",
        GRADIENTS,
        "seeds",
    ]
    rows = []
    reference = stored.seconds(found["pgd10"])
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
        strong = stored.autoattack(
            RESULTS / ("cifar10" if title in STUDIES["cifar10"].recipes else "cifar10-others"),
            title,
        )
        ours = [
            stored.accuracy(runs, attack)
            for attack in ("clean", "pgd-20", "cw-l2-100@1000", "cw-pgd-20")
        ]
        spent = stored.seconds(runs)
        last = [
            strong,
            f"{spent:.1f}",
            f"{spent / reference:.2f}",
            f"{stored.cost(runs):.2f}",
            str(len(runs)),
        ]
        rows.append([f"**{name}**, ours", *ours, *last])
    share, spent = (
        stored.cost(found["amata"]) / stored.cost(found["pgd10"]),
        stored.seconds(found["amata"]) / reference,
    )
    below = (
        f"Amata takes {share:.2f} of PGD-10's gradient evaluations and {spent:.2f} of its time. A "
        "weight update costs more than an attack step and is not annealed. AutoAttack: one seed, "
        "1,000 images; a difference of one point is not significant."
    )
    return f"{markdown(head, rows)}\n\n{below}"


RACES = {
    "cifar10": {"pgd10": "PGD-10", "amata": "Amata"},
    "mnist-yopo-seeds": {"m5": "YOPO", "linear-2-5": "Amata+YOPO"},
    "cifar10-fast": {"fast": "Fast", "amata-fast-skip": "Amata+Fast, skip"},
    "cifar10-atta": {"atta": "ATTA", "amata-atta": "Amata+ATTA"},
}
"""Pairs of recipes whose times to a robust accuracy are compared, or their gradient evaluations
where several runs shared the device."""


def race(study: str, thresholds: Sequence[float]) -> Callable[[], str]:
    """When the two recipes of a study first reach each threshold, and what all of it takes."""

    def write() -> str:
        found, names = stored.summaries(study), RACES[study]
        if any(title not in found for title in names):
            return stored.pending(study)
        timed = stored.timed(study)
        unit, total = (" s", stored.seconds) if timed else ("", stored.total_cost)
        attack = stored.valid_attack(study, next(iter(names))).upper()
        rows = []
        for threshold in thresholds:
            spent = [stored.spent_until(study, title, threshold) for title in names]
            if any(any(runs) for runs in spent):
                means = [fmean(filter(None, runs)) for runs in spent if all(runs)]
                ratio = f"{means[0] / means[1]:.2f}" if len(means) == len(spent) else ""
                cells = [stored.reached(runs, unit) for runs in spent]
                rows.append([f"{100 * threshold:.0f}%", *cells, ratio])
        a, b = (total(found[title]) for title in names)
        ends = [
            f"{whole:.1f}{unit}, {100 * stored.highest(study, title):.1f}%"
            for whole, title in zip((a, b), names, strict=True)
        ]
        end = "total time" if timed else "total gradient evaluations per image"
        rows.append([f"{end}, best accuracy", *ends, f"{a / b:.2f}"])
        head = f"{attack} accuracy on held-out images"
        titles = [head, *names.values(), "speedup" if timed else "ratio"]
        axis = "training time" if timed else "gradient evaluations"
        shown = f"![robust error over {axis}]({picture_of(study)})"
        return f"{markdown(titles, rows)}\n\n{shown}"

    return write


def picture_of(study: str) -> str:
    """The picture of a race; that of CIFAR-10 is also the README's."""
    return f"{study}.svg"


def draw_races() -> None:
    for study, names in RACES.items():
        if study != "cifar10":
            with picture(DOCS / picture_of(study), 1, (4.6, 3.1)) as (ax,):
                plot_robust_error(ax, study, names)


def table(
    study: str,
    paper: Mapping[str, tuple[str, Sequence[str]]],
    columns: dict[str, str],
    *,
    timed: bool = True,
) -> Callable[[], str]:
    """A study's runs under some attacks, below the paper's row where there is one."""

    def write() -> str:
        found = stored.summaries(study)
        if not found:
            return stored.pending(study)
        ends, rows = (["seconds"] if timed else []) + [GRADIENTS], []
        for title in STUDIES[study].recipes:
            name, values = paper.get(title, (title, ()))
            if values:
                rows.append(
                    [f"{name}, paper", *values, *[""] * (len(columns) + len(ends) - len(values))]
                )
            if title in found:
                runs = found[title]
                spent = [f"{stored.seconds(runs):.1f}"] if timed else []
                rows.append(
                    [
                        f"**{name}**, ours",
                        *(stored.accuracy(runs, attack) for attack in columns),
                        *spent,
                        f"{stored.cost(runs):.2f}",
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
    "figure-2-left": race("cifar10", (0.35, 0.4, 0.45)),
    "table-1": digits.mnist_table,
    "criterion": digits.criterion_table,
    "figure-2-right": race("mnist-yopo-seeds", (0.8, 0.85, 0.9, 0.94)),
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
    "fast-times": race("cifar10-fast", (0.3, 0.35, 0.4, 0.44)),
    "atta": table("cifar10-atta", ATTA, ON_CIFAR10),
    "atta-times": race("cifar10-atta", (0.3, 0.35, 0.4, 0.44)),
    "shapes": table("mnist-shapes", SHAPES, {"clean": "clean", "pgd-40": "PGD-40"}, timed=False),
    "landscape": digits.landscape_figure,
}


def main() -> None:
    if "--check" not in sys.argv:
        draw_races()
        if digits.criteria():
            digits.draw_criterion()
    rewrite({DOCS / "paper.md": PARTS}, "paper")


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    main()
