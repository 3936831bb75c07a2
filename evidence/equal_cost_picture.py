"""The picture of docs/annealing.md: every annealed arm against the constants of equal cost."""

from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import stored
from amata.report.figures import BLUE, GREY, INK, ORANGE
from amata.studies.intervals import Estimate
from definition import Test
from differences import difference
from equal_cost import MARGIN, STRICT, row_label
from page import attack_name, picture
from study import STUDIES
from verdicts import CONFIRMED, NOT_REPRODUCED, OPEN, at_equal_cost, claims, verdict


class Row(NamedTuple):
    """One comparison of the picture."""

    label: str
    seconds: float
    attack: str
    gain: Estimate
    answer: str


LIMITS = (-2.6, 4.6)
"""Of the picture's axis, in points; longer intervals end with an arrow."""
HEADINGS = {
    "cifar10-paper-recipe": "CIFAR-10, the paper's recipe",
    "cifar10-equal-cost": "CIFAR-10, the paper's recipe",
    "cifar10-100-epochs-seeds": "CIFAR-10, the paper's recipe, 100 epochs",
    "cifar10-fast-recipe": "CIFAR-10, fast recipe",
    "cifar10-quick-equal-cost": "CIFAR-10, fast recipe",
    "cifar10-1m": "CIFAR-10, cifar10-1m",
    "cifar10-eps16": "CIFAR-10, ε = 16/255",
}
"""Where a comparison is drawn, unless its study is of equal time, or of other data."""
EQUAL_TIME = "CIFAR-10, fast recipe, equal time"
DATA = {"cifar10": "CIFAR-10", "mnist": "MNIST", "mnist5k": "5,000 digits, CPU"}
DATA["tiny"] = "Tiny-ImageNet, 40 classes"
"""The data sets by the beginning of a study's name."""
MARKS = {
    CONFIRMED: ("better: the interval is above zero", {"color": ORANGE}),
    NOT_REPRODUCED: ("not better by half a point", {"color": GREY}),
    OPEN: ("open", {"color": GREY, "mfc": "white"}),
}


def compared() -> dict[str, list[Row]]:
    """Every comparison at equal cost, by heading: under the main attack of its study, and under
    AutoAttack where that is known."""
    stated, margin = claims()
    found: dict[tuple[str, Test, str], Row] = {}
    for claim in stated:
        if (known := at_equal_cost(claim)) is None or claim["attack"] == MARGIN.lower():
            continue
        study, pair = known
        for attack in (claim["attack"], STRICT):
            if gain := difference(study, pair, attack):
                same = {**claim, "attack": attack, "tests": [[study, pair.arm, pair.against]]}
                answer = verdict(same, margin)[0]
                seconds = stored.seconds(stored.summaries(study)[pair.arm])
                label = row_label(study, pair, seconds)
                found[study, pair, attack] = Row(label, round(seconds), attack, gain, answer)
    rows: dict[str, list[Row]] = {}
    for (study, *_), row in found.items():
        equal_time = EQUAL_TIME if STUDIES[study].equal_seconds else DATA[study.partition("-")[0]]
        rows.setdefault(HEADINGS.get(study, equal_time), []).append(row)
    rows.get(EQUAL_TIME, []).sort(key=attrgetter("seconds"))
    return rows


def draw(file: Path) -> None:
    """A row for each comparison: the difference with its interval, and as a number."""
    groups = compared()
    count = sum(len(rows) + 1.4 for rows in groups.values())
    with picture(file, 1, (9.6, 0.19 * count + 0.9)) as (ax,):
        y = 0.0
        ticks: list[tuple[float, str]] = []
        for name, rows in groups.items():
            ax.text(
                -0.01,
                y,
                name,
                transform=ax.get_yaxis_transform(),
                ha="right",
                va="center",
                weight="bold",
                color=INK,
            )
            for row in rows:
                y += 1
                draw_row(ax, y, row)
                ticks.append((y, row.label))
            y += 1.4
        ax.axvline(0, color=INK, lw=0.8, zorder=0)
        ax.axvspan(0, 0.5, color=BLUE, alpha=0.06, lw=0)
        ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlim(*LIMITS)
        ax.set_ylim(y - 0.6, -0.9)
        ax.set_xlabel("annealed minus constant, points of robust accuracy, 95% interval")
        for label, style in MARKS.values():
            ax.plot([], [], "o", label=label, **style)
        ax.plot([], [], "D", color=INK, mfc="none", label="under AutoAttack")
        below = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.9 / count - 0.04)}
        ax.legend(frameon=False, ncol=4, handletextpad=0.2, columnspacing=1.5, **below)


def draw_row(ax: Any, y: float, row: Row) -> None:
    style, (low, high) = MARKS[row.answer][1], LIMITS
    ends = max(row.gain.low, low), min(row.gain.high, high)
    ax.plot(ends, (y, y), color=style["color"], lw=1.6, solid_capstyle="butt")
    for end, cut, arrow in ((low, row.gain.low, "<"), (high, row.gain.high, ">")):
        if (cut < end) if arrow == "<" else (cut > end):
            ax.plot(end, y, arrow, color=style["color"], ms=5, clip_on=False)
    if low < row.gain.mean < high:
        ax.plot(row.gain.mean, y, "D" if row.attack == STRICT else "o", ms=5.5, **style)
    name = attack_name(row.attack)
    ax.text(
        1.01,
        y,
        f"{row.gain}  {name}",
        transform=ax.get_yaxis_transform(),
        va="center",
        color=INK,
        fontsize=8,
    )
