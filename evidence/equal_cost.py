"""Annealed K against the constants of equal cost, over all studies: the README's table, and the
picture of all differences on docs/annealing.md."""

import re
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import stored
from amata.report.figures import BLUE, GREY, INK, ORANGE
from amata.studies.intervals import Estimate
from definition import FRONT, Test
from differences import collapsed, difference
from page import attack_name, markdown, picture
from study import STUDIES
from study_section import test_name
from verdicts import ANSWERS, CONFIRMED, NOT_REPRODUCED, OPEN, at_equal_cost, claims, verdict

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
SHORT_TRAINING = (
    "cifar10-fast-recipe",
    "cifar10-20s",
    "cifar10-13s-ema",
    "cifar10-13s-again",
    "cifar10-18s",
    "cifar10-27s",
    "cifar10-1m",
)
ATTACKS = ("pgd-20", "cw-pgd-20", "autoattack", "clean")
"""The studies and the columns of the table of short trainings on docs/annealing.md."""


def table() -> str:
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


def short_training() -> str:
    """The comparisons with the fast recipe: at equal time, and at equal gradient evaluations."""
    stated, margin = claims()
    rows: dict[tuple[str, Test], list[str]] = {}
    for claim in stated:
        if (known := at_equal_cost(claim)) and known[0] in SHORT_TRAINING:
            study, pair = known
            answer = ANSWERS[verdict(claim, margin)[0]]
            if (study, pair) not in rows:
                rows[study, pair] = [*short_row(study, pair), answer]
    head = ["seconds", "annealed", "against", *map(attack_name, ATTACKS), "better?"]
    return markdown(head, sorted(rows.values(), key=lambda row: float(row[0])))


def short_row(study: str, pair: Test) -> list[str]:
    gains = (difference(study, pair, attack) for attack in ATTACKS)
    label = row_label(study, pair, seconds := stored.seconds(stored.summaries(study)[pair.arm]))
    arms = label.partition(": ")[2] if STUDIES[study].equal_seconds else label
    known = (unbroken(UNKNOWN if gain is None else gain) for gain in gains)
    return [f"{seconds:.1f}", *arms.split(" against "), *known]


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


def row_label(study: str, pair: Test, seconds: float) -> str:
    """The annealed arm and what it is compared with, the time where that is what is equal, and how
    many runs collapsed."""
    own = STUDIES[study]
    against = "line of constants" if pair.against == FRONT else own.labels[pair.against]
    arms = own.labels[pair.arm].removeprefix("linear "), against.removeprefix("constant ")
    label = " against ".join(arms)
    if own.equal_seconds:
        label = f"{seconds:.0f} s: " + re.sub(r", \d+ epochs", "", label)
    lost = sum(len(collapsed(study).get(title, ())) for title in (pair.arm, pair.against))
    return f"{label} ({lost} collapsed)" if lost else label


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
