"""Pictures of a study: accuracy against cost with the front of constants, and held-out robustness
over the epochs of arms that cost the same."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

import stored
from amata.report.figures import GREY, SERIES
from definition import FRONT
from differences import collapsed, main_attack, outcomes
from page import attack_name, picture
from study import STUDIES

MARK = 5
"""Half of the width of a mark, in pixels."""
LEAST_POINTS = 1.0
"""Axes of accuracy are at least this wide, so that noise does not look like a difference."""
LEAST_COST = 0.1
"""Axes of cost are at least this wide, as a share of the largest cost."""


def standing(study: str, title: str, attack: str) -> tuple[list[float], str]:
    """The accuracies of the seeds that did not collapse, and how many did, in words."""
    gone, found = collapsed(study)[title], outcomes(study, title, attack)
    kept = [float(v.mean()) for seed, v in found.items() if seed not in gone]
    return kept, f", {len(gone)} of {len(found)} collapsed" if gone else ""


def draw(study: str, file: Path) -> None:
    """The pictures of a study, two side by side: wider ones are unreadable on a page."""
    rows = 2 if pair(study) else 1
    with picture(file, 2, (8.4, 3.4 * rows), rows) as axes:
        panels = [axes[0], axes[1], *axes[3:]]
        writers = [view(ax) for ax, view in zip(panels, views(study), strict=False)]
        for unused in panels[len(writers) :]:
            unused.axis("off")
        if axes[1].get_ylabel() == axes[0].get_ylabel():
            axes[1].set_ylabel("")
        drawing = axes[0].figure
        if rows == 1:
            axes[1 if STUDIES[study].equal_seconds else 0].legend(frameon=False)
        else:
            draw_epochs(axes[2], study)
            names = axes[0].get_legend_handles_labels()
            drawing.legend(*names, frameon=False, loc="outside lower center", ncols=3)
        drawing.draw_without_rendering()  # places the axes
        for write in writers:
            write()


def views(study: str) -> Iterator[Callable[[Any], Callable[[], None]]]:
    """What to draw: accuracy against gradient evaluations, against seconds where these are known,
    and under the last attack; or against seconds, where these are equal, and clean accuracy."""
    runs, own = stored.summaries(study), STUDIES[study]
    gradients = {title: stored.total_cost(found) for title, found in runs.items()}
    seconds = {title: stored.seconds(found) for title, found in runs.items()}
    clean = {title: 100 * stored.mean_accuracy(found, "clean") for title, found in runs.items()}
    against_cost = partial(
        draw_front, study=study, costs=gradients, name="gradient evaluations per image"
    )
    against_time = partial(
        draw_front, study=study, costs=seconds, name=f"training seconds, {device(study)}"
    )
    timed, strict = stored.timed(study), own.attacks[-1] != main_attack(study)
    yield against_time if own.equal_seconds else against_cost
    if timed and not own.equal_seconds:
        yield against_time
    if strict and not own.equal_seconds:
        yield partial(against_cost, attack=own.attacks[-1])
    if own.equal_seconds or not (timed or strict):
        yield partial(
            draw_front, study=study, costs=clean, name="clean accuracy (%)", least=LEAST_POINTS
        )


def device(study: str) -> str:
    """What its runs were trained on, in a few words."""
    runs = [run for title in stored.summaries(study) for run in stored.runs_of(study, title)]
    found = {env["device"].removeprefix("NVIDIA ") for r in runs for env in stored.environments(r)}
    return f"one {' or '.join(sorted(found)).replace('cpu', 'CPU')}"


def styles_of(study: str) -> dict[str, tuple[str, str]]:
    """The colour and the mark of each arm; all constants have the same."""
    others, front = iter(SERIES[1:] * 2), STUDIES[study].front
    return {t: SERIES[0] if t in front else next(others) for t in stored.summaries(study)}


def draw_front(
    ax: Any,
    study: str,
    costs: dict[str, float],
    name: str,
    least: float | None = None,
    attack: str | None = None,
) -> Callable[[], None]:
    """Seeds as small marks, their means as large ones; a line joins the constants, unless they take
    the same time. A single seed beside arms of several stays small. Collapsed seeds are left out,
    and the mean of the others is hollow. The horizontal axis is at least `least` wide. Returns what
    writes the names of the constants, once the axes have their place."""
    if least is None:
        least = LEAST_COST * max(costs.values())
    own, attack = STUDIES[study], attack or main_attack(study)
    found = {title: standing(study, title, attack) for title in costs}
    notes = {title: note for title, (_, note) in found.items()}
    points = {title: values for title, (values, _) in found.items() if values}
    means = {title: statistics.mean(values) for title, values in points.items()}
    shown = list(means)
    front = sorted((costs[title], title) for title in own.front if title in shown)
    if not own.equal_seconds:
        ax.plot([x for x, _ in front], [means[title] for _, title in front], color=GREY, lw=1.2)
    styles = styles_of(study)
    most = max(map(len, points.values()), default=0)
    shift = 0.012 * max(max(costs.values()) - min(costs.values()), least)
    places: dict[str, float] = {}
    for title in shown:
        paint, marker = styles[title]
        x, values = beside(costs[title], shift, list(places.values())), points[title]
        places[title] = x
        label = None if title in own.front else own.labels[title] + notes[title]
        ax.plot([x] * len(values), values, ls="none", marker=marker, ms=3, color=paint, alpha=0.45)
        fill: dict[str, Any] = {"mfc": "white"} if notes[title] else {}
        if alone := len(values) == 1 < most and label is not None:
            label = f"{label}, one seed"
        ms = 4 if alone else 7
        ax.plot(x, means[title], ls="none", marker=marker, ms=ms, color=paint, label=label, **fill)
    ax.set(xlabel=name, ylabel=f"{attack_name(attack)} accuracy (%)")
    ax.margins(0.14, 0.2)
    ax.set_xlim(widened(ax.get_xlim(), least))
    ax.set_ylim(widened(ax.get_ylim(), LEAST_POINTS))
    names = {title: own.labels[title].partition(",")[0] for _, title in front}
    if len(set(names.values())) < len(names):
        names = {title: own.labels[title].replace(", ", "\n") for title in names}
    marks = {t: [(places[t], value) for value in (*points[t], means[t])] for t in shown}
    return partial(write_names, ax, names, marks)


def write_names(
    ax: Any, names: dict[str, str], marks: dict[str, list[tuple[float, float]]]
) -> None:
    """Each name at its arm's marks, within the axes, where it covers no mark, no line and no other
    name: below, above, right or left; otherwise further and further below."""
    at = ax.transData.transform([place for places in marks.values() for place in places])
    taken = [Bbox.from_extents(*(place - MARK), *(place + MARK)) for place in at]
    drawn = [line for line in ax.get_lines() if line.get_linestyle() != "None"]
    lines = [ax.transData.transform_path(line.get_path()) for line in drawn]
    for title, name in names.items():
        low, high = min(marks[title], key=itemgetter(1)), max(marks[title], key=itemgetter(1))
        middle = (low[0], statistics.mean(y for _, y in marks[title]))
        tries = [
            (low, (0, -6), "center", "top"),
            (high, (0, 6), "center", "bottom"),
            (middle, (8, 0), "left", "center"),
            (middle, (-8, 0), "right", "center"),
            *((low, (x, -6 * i), "center", "top") for i in range(1, 20) for x in (-20, 0, 20)),
        ]
        for place, offset, ha, va in tries:
            text = ax.annotate(
                name,
                place,
                offset,
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=8,
                color=GREY,
            )
            box = text.get_window_extent()
            inside = ax.bbox.contains(box.x0, box.y0) and ax.bbox.contains(box.x1, box.y1)
            crossed = any(line.intersects_bbox(box, filled=False) for line in lines)
            if inside and not crossed and not box.count_overlaps(taken):
                break
            text.remove()
        else:
            raise ValueError(f"no room for the name {name!r}")
        taken.append(box)


def beside(cost: float, shift: float, taken: list[float]) -> float:
    """The place nearest to the cost where a mark covers none of the others.

    >>> beside(9.0, 1.0, []), beside(9.0, 1.0, [9.0]), beside(9.0, 1.0, [8.5, 9.5])
    (9.0, 8.0, 7.0)
    >>> round(beside(206.2, 7.7, [206.2, 198.5]), 1)
    213.9
    """
    # A mark covers two of these places at most; by rounding, a distance may be just below shift.
    near = (cost + side * i * shift for i in range(len(taken) + 1) for side in (-1, 1))
    return next(x for x in near if all(abs(x - other) >= 0.99 * shift for other in taken))


def widened(limits: tuple[float, float], least: float) -> tuple[float, float]:
    """The limits of an axis, moved apart on both sides if they are too close.

    >>> widened((2.0, 3.0), 4.0), widened((2.0, 3.0), 0.5)
    ((0.5, 4.5), (2.0, 3.0))
    """
    low, high = limits
    spare = max(least - (high - low), 0.0) / 2
    return low - spare, high + spare


def pair(study: str) -> tuple[str, str] | None:
    """The annealed arm and constant to compare over the epochs: of those with held-out curves one
    of equal cost or time, then the pair with the most seeds, then the first of the study."""
    found: dict[tuple[str, str], tuple[bool, int]] = {}
    own = STUDIES[study]
    for test in own.tests:
        if test.against == FRONT:
            continue
        both = [stored.epochs(study, title) for title in (test.arm, test.against)]
        if all(runs and any("valid" in row for row in runs[0]) for runs in both):
            equal = test in own.equal or test in own.equal_seconds
            found[test.arm, test.against] = equal, min(map(len, both))
    return max(found, key=lambda titles: found[titles], default=None)


def draw_epochs(ax: Any, study: str) -> None:
    """Held-out robust accuracy: thin lines are seeds, thick ones their means."""
    titles = pair(study)
    assert titles is not None
    for title in titles:
        paint, attack = styles_of(study)[title][0], stored.valid_attack(study, title)
        curves = [
            {row["epoch"] + 1: 100 * row["valid"][attack] for row in rows if "valid" in row}
            for rows in stored.epochs(study, title)
        ]
        for curve in curves:
            ax.plot(curve.keys(), curve.values(), color=paint, lw=0.6, alpha=0.45)
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [statistics.mean(curve[epoch] for curve in curves) for epoch in epochs]
        ax.plot(epochs, means, color=paint, lw=2, label=STUDIES[study].labels[title])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.set(xlabel="epoch", ylabel=f"held-out {attack.upper()} accuracy (%)")
    ax.legend(frameon=False, loc="lower right")
