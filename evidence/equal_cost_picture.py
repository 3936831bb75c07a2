"""The picture of docs/annealing.md: every annealed arm against the constants of equal cost."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import stored
from amata.report.figures import BLUE, GREY, INK, ORANGE
from amata.studies.intervals import Estimate
from definition import FRONT, Test
from differences import collapsed, difference, weights
from equal_cost import STRICT, arms_of
from page import attack_name, picture
from study import STUDIES
from verdicts import CONFIRMED, NOT_REPRODUCED, OPEN, SEEDS, claims, decide

FAST = "CIFAR-10, fast recipe"
PAPERS = "CIFAR-10, the paper's recipe"
EQUAL_TIME = f"{FAST}, equal time"
DIGITS = "5,000 digits, CPU"
GROUPS = {
    "cifar10-paper-recipe": (PAPERS, ""),
    "cifar10-equal-cost": (PAPERS, "first study"),
    "cifar10-headline": (PAPERS, "with APGD-T"),
    "cifar10-closed-loop": (PAPERS, ""),
    "cifar10-100-epochs-seeds": (PAPERS, "100 epochs"),
    "cifar10-fast-recipe": (FAST, "tuned"),
    "cifar10-quick-equal-cost": (FAST, "not tuned"),
    "cifar10-13s": (EQUAL_TIME, "tuned"),
    "cifar10-13s-ema": (EQUAL_TIME, "tuned again"),
    "cifar10-13s-again": (EQUAL_TIME, "new seeds"),
    "cifar10-9s-order": (EQUAL_TIME, "order of K"),
    "cifar10-9s-shapes": (EQUAL_TIME, "shape of the rise"),
    "cifar10-18s": (EQUAL_TIME, "not tuned"),
    "cifar10-20s": (EQUAL_TIME, "tuned"),
    "cifar10-22s": (EQUAL_TIME, "larger K·α"),
    "cifar10-27s": (EQUAL_TIME, "tuned"),
    "cifar10-27s-tuning": (EQUAL_TIME, "tuned further"),
    "cifar10-1m": ("CIFAR-10, cifar10-1m", ""),
    "cifar10-5m": ("CIFAR-10, cifar10-5m", ""),
    "cifar10-eps16": ("CIFAR-10, ε = 16/255", ""),
    "tiny-equal-cost": ("Tiny-ImageNet, 40 classes", ""),
    "mnist-equal-cost": ("MNIST", ""),
    "mnist-few-steps": ("MNIST", "few steps"),
    "mnist5k-equal-cost": (DIGITS, ""),
    "mnist5k-again": (DIGITS, "new seeds"),
    "mnist5k-order": (DIGITS, ""),
    "mnist5k-autoattack": (DIGITS, ""),
    "mnist5k-closed-loop": (DIGITS, ""),
    "mnist5k-msa": (DIGITS, ""),
    "mnist5k-fgsm-pgi": ("5,000 digits, FGSM-PGI", ""),
    "cifar10-fgsm-pgi": ("CIFAR-10, FGSM-PGI", "tuned"),
}
"""The heading and a remark of a study, in the order of the picture. Others come last, under what
they are about."""
LIMITS = (-4.6, 4.6)
"""Of the picture's axis, in points; longer intervals end with an arrow."""
SHOWN = ("pgd-", "apgd-t", STRICT)
"""What the names of the picture's attacks begin with."""
WORSE = "worse"
MARKS = {
    CONFIRMED: ("better", {"color": ORANGE}),
    WORSE: ("worse", {"color": BLUE}),
    NOT_REPRODUCED: ("a gain of half a point is ruled out", {"color": GREY}),
    OPEN: ("open", {"color": GREY, "mfc": "white"}),
}


class Row(NamedTuple):
    """One comparison of the picture."""

    label: str
    attack: str
    gain: Estimate
    answer: str
    seconds: float
    """Of the annealed arm; 0 where gradient evaluations are what is equal."""


def compared(studies: Sequence[str]) -> dict[str, list[Row]]:
    """Every comparison at equal cost with enough seeds, by heading, under PGD, APGD-T and
    AutoAttack. Where an arm has several rivals of equal time, the one that leaves it the least."""
    margin = claims()[1]
    rows: dict[str, list[Row]] = {}
    order = [*GROUPS, *(study for study in studies if study not in GROUPS)]
    for study in sorted(studies, key=order.index):
        own = STUDIES[study]
        attacks = (attack for attack in own.attacks if attack.startswith(SHOWN))
        for attack in dict.fromkeys((*attacks, STRICT)):
            for pairs in rivals(study):
                gains = {pair: difference(study, pair, attack) for pair in pairs}
                known = {p: gain for p, gain in gains.items() if gain and gain.seeds >= SEEDS}
                if known:
                    pair = min(known, key=lambda p: known[p].mean)
                    gain = known[pair]
                    answer = WORSE if gain.high < 0 else decide("better", gain, margin)
                    heading = GROUPS.get(study, (own.about, ""))[0]
                    time = timed(study, pair)
                    row = Row(label_of(study, pair), attack, gain, answer, time)
                    rows.setdefault(heading, []).append(row)
    return {name: sorted(own, key=attrgetter("seconds")) for name, own in rows.items()}


def timed(study: str, pair: Test) -> float:
    """Seconds of training, where these are what is equal."""
    arm = stored.summaries(study)[pair.arm]
    return stored.seconds(arm) if STUDIES[study].equal_seconds else 0.0


def rivals(study: str) -> Iterator[list[Test]]:
    """The tests at equal cost; those at equal time are grouped by arm."""
    own = STUDIES[study]
    for pair in own.tests:
        if pair in own.equal or (pair.against == FRONT and not own.equal_seconds):
            yield [pair]
    for arm in dict.fromkeys(pair.arm for pair in own.equal_seconds):
        yield [pair for pair in own.equal_seconds if pair.arm == arm]


def label_of(study: str, pair: Test) -> str:
    """What is compared, the time where that is what is equal, and what happened to the runs."""
    runs = stored.summaries(study)
    label = " against ".join(arms_of(study, pair))
    if seconds := timed(study, pair):
        label = f"{seconds:.0f} s: {label}"
    arms = weights(study, pair) or {}
    lost = sum(len(collapsed(study)[title]) for title in arms)
    back = sum(run["rolled_back"] > 0 for title in arms for run in runs[title])
    remarks = [
        GROUPS.get(study, ("", ""))[1],
        f"{lost} collapsed" if lost else "",
        f"{back} rolled back" if back else "",
    ]
    return ", ".join([label, *filter(None, remarks)])


def draw(file: Path, studies: Sequence[str]) -> None:
    """A row for each comparison: the difference with its interval, and as a number."""
    groups = compared(studies)
    count = sum(len(rows) + 1.4 for rows in groups.values())
    with picture(file, 1, (10.4, 0.19 * count + 0.9)) as (ax,):
        left = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
        y = 0.0
        ticks: list[tuple[float, str]] = []
        for name, rows in groups.items():
            ax.text(-0.01, y, name, weight="bold", color=INK, **left)
            for row in rows:
                y += 1
                draw_row(ax, y, row)
                ticks.append((y, row.label))
            y += 1.4
        ax.axvline(0, color=INK, lw=0.8, zorder=0)
        ax.axvspan(0, claims()[1], color=GREY, alpha=0.13, lw=0)
        ax.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlim(*LIMITS)
        ax.set_ylim(y - 0.6, -0.9)
        ax.set_xlabel("annealed minus constant, points of robust accuracy, 95% interval")
        for label, style in MARKS.values():
            ax.plot([], [], "o", label=label, **style)
        ax.plot([], [], "D", color=INK, mfc="none", label="under AutoAttack")
        below = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.9 / count - 0.03)}
        ax.legend(frameon=False, ncol=5, handletextpad=0.2, columnspacing=1.5, **below)


def draw_row(ax: Any, y: float, row: Row) -> None:
    gain, style, (low, high) = row.gain, MARKS[row.answer][1], LIMITS
    ends = max(gain.low, low), min(gain.high, high)
    ax.plot(ends, (y, y), color=style["color"], lw=1.6, solid_capstyle="butt")
    if gain.low < low:
        ax.plot(low, y, "<", color=style["color"], ms=5, clip_on=False)
    if gain.high > high:
        ax.plot(high, y, ">", color=style["color"], ms=5, clip_on=False)
    if low < gain.mean < high:
        ax.plot(gain.mean, y, "D" if row.attack.startswith(STRICT) else "o", ms=5.5, **style)
    said = f"{gain}  {attack_name(row.attack)}, {gain.seeds} seeds"
    at = {"transform": ax.get_yaxis_transform(), "va": "center"}
    ax.text(1.03, y, said, color=INK, fontsize=8, **at)
