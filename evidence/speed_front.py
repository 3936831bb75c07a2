"""Robust accuracy against training time on CIFAR-10, before and after: what a second of training
bought when the records began, and what it buys now."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stored
from amata.report.figures import GREY, ORANGE
from differences import collapsed
from page import markdown, picture
from study import STUDIES
from verdicts import SEEDS

ATTACK = "pgd-20"
BEFORE = ("cifar10-quick-equal-cost",)
AFTER = (
    "cifar10-fast-recipe",
    "cifar10-20s",
    "cifar10-18s",
    "cifar10-13s",
    "cifar10-13s-ema",
    "cifar10-13s-again",
    "cifar10-27s",
    "cifar10-27s-tuning",
    "cifar10-1m",
    "cifar10-5m",
)
"""Studies of the recipes of the speed records, at eps 8/255 on an H200."""
FIRST_ENTRIES = {"pgd20": "linear 2 → 3", "autoattack": "linear 2 → 4"}
"""Entries that were measured before the studies."""
KINDS = {"linear": "annealed K", "constant": "constant K"}
SHOWN = {"clean": "clean %", ATTACK: "PGD-20 %", "cw-pgd-20": "CW-PGD-20 %"}


@dataclass(frozen=True)
class Arm:
    label: str
    place: str
    runs: stored.Rows

    @property
    def seconds(self) -> float:
        return stored.seconds(self.runs)

    @property
    def robust(self) -> float:
        return 100 * stored.mean_accuracy(self.runs, ATTACK)

    @property
    def kind(self) -> str:
        return self.label.partition(" ")[0]


def arms_of(study: str) -> list[Arm]:
    """Annealed and constant arms of which no seed collapsed, once all of them have enough seeds: an
    annealed arm alone would seem to be ahead of the constants that it was measured with."""
    measured = stored.summaries(study)
    labels = STUDIES[study].labels
    titles = [title for title in labels if labels[title].partition(" ")[0] in KINDS]
    if any(len(measured.get(title, [])) < SEEDS for title in titles):
        return []
    lost = collapsed(study)
    return [Arm(labels[title], study, measured[title]) for title in titles if not lost[title]]


def before() -> list[Arm]:
    entries = [
        Arm(label, name, [stored.summary(run) for run in stored.entry_runs(name)])
        for name, label in FIRST_ENTRIES.items()
    ]
    return [*entries, *(arm for study in BEFORE for arm in arms_of(study))]


def after() -> list[Arm]:
    return [arm for study in AFTER for arm in arms_of(study)]


def front(arms: list[Arm]) -> list[Arm]:
    """Those that no faster one equals in robustness, the fastest first."""
    found: list[Arm] = []
    for arm in sorted(arms, key=lambda a: (a.seconds, -a.robust)):
        if not found or arm.robust > found[-1].robust:
            found.append(arm)
    return found


def part() -> str:
    """The page's part: how much sooner, and the table."""
    return f"{gain()}\n\n{table()}"


def table() -> str:
    rows = []
    for when, arms in (("before", before()), ("now", after())):
        for kind, name in KINDS.items():
            for arm in front([a for a in arms if a.kind == kind]):
                accuracies = [stored.accuracy(arm.runs, attack) for attack in SHOWN]
                label = arm.label.removeprefix(f"{kind} ")
                rows.append(
                    [f"{name}, {when}", label, f"{arm.seconds:.1f}", *accuracies, f"`{arm.place}`"]
                )
    head = ["", "K", "seconds", *SHOWN.values(), "study or entry"]
    return markdown(head, rows)


def draw(file: Path) -> None:
    """All arms as marks, those of the front joined."""
    with picture(file, 1, (6.6, 3.8)) as (ax,):
        for when, arms, filled in (("before", before(), False), ("now", after(), True)):
            for kind, colour, marker in (("linear", ORANGE, "s"), ("constant", GREY, "o")):
                own = [arm for arm in arms if arm.kind == kind]
                style: dict[str, Any] = {"marker": marker, "color": colour}
                style |= {} if filled else {"mfc": "white"}
                best = front(own)
                rest = [arm for arm in own if arm not in best]
                ax.plot(
                    [arm.seconds for arm in best],
                    [arm.robust for arm in best],
                    ms=7,
                    lw=1.4 if filled else 1,
                    ls="-" if filled else ":",
                    label=f"{KINDS[kind]}, {when}",
                    **style,
                )
                ax.plot(
                    [arm.seconds for arm in rest],
                    [arm.robust for arm in rest],
                    ms=4,
                    ls="none",
                    alpha=0.5,
                    **style,
                )
        ax.set_xscale("log")
        first, last = ax.get_xlim()
        ticks = [t for t in (10, 13, 16, 20, 25, 30, 40, 50, 60, 100, 200, 300) if first < t < last]
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        ax.set(xlabel="training seconds, one H200", ylabel="PGD-20 accuracy on CIFAR-10 (%)")
        ax.legend(frameon=False, loc="lower right")


def gain() -> str:
    """How much sooner the accuracy of the first entry is reached now."""
    first = next(arm for arm in before() if arm.place == "pgd20")
    sooner = [arm for arm in after() if arm.robust >= first.robust]
    quickest = min(sooner, key=lambda arm: arm.seconds)
    spread = statistics.stdev(run["evaluation"][ATTACK]["accuracy"] for run in first.runs)
    return (
        f"The {first.robust:.1f}% ± {100 * spread:.1f} of the first entry took {first.seconds:.1f} "
        f"s, and {quickest.robust:.1f}% take {quickest.seconds:.1f} s now ({quickest.label} of "
        f"`{quickest.place}`)."
    )
