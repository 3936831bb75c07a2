"""The README's picture: robust accuracy against cost on CIFAR-10, annealed K beside the line of
constants."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import stored
from amata.report.figures import GREY, INK, ORANGE
from fronts import standing
from page import picture
from study import STUDIES
from verdicts import SEEDS

ATTACK = "pgd-20"
RECIPES = {
    "the paper's recipe, 30 epochs": ("cifar10-paper-recipe", "cifar10-equal-cost"),
    "fast recipe, 19 epochs": ("cifar10-fast-recipe", "cifar10-quick-equal-cost"),
}
"""Each with its studies; the first that has results is drawn."""
HEADLINE = {"pgd10": "constant 10"}
"""An arm of `cifar10-headline`, which has the paper's recipe too, and the same K α."""
NEAR = 1.2
"""Labels of arms touch if one costs less than this many times the other."""
Point = tuple[float, list[float], str]
"""Gradient evaluations per image, accuracy of the seeds that did not collapse, and the label with
how many did."""


def points(study: str, titles: Sequence[str], labels: dict[str, str]) -> list[Point]:
    """Of the arms that have enough seeds."""
    runs = stored.summaries(study)
    found = []
    for title in titles:
        if len(runs.get(title, ())) >= SEEDS:
            values, note = standing(study, title, ATTACK)
            found.append((stored.total_cost(runs[title]), values, labels[title] + note))
    return sorted(found)


def annealed(study: str) -> list[str]:
    """The arms with a rising K and K α fixed."""
    labels = STUDIES[study].labels
    return [t for t in STUDIES[study].recipes if re.fullmatch(r"linear \d+ → \d+", labels[t])]


def measured(studies: Sequence[str]) -> str:
    """The first study with all its constants and an annealed arm."""
    return next(
        name
        for name in studies
        if len(points(name, STUDIES[name].front, STUDIES[name].labels)) == len(STUDIES[name].front)
        and points(name, annealed(name), STUDIES[name].labels)
    )


def curves(name: str) -> tuple[list[Point], list[Point]]:
    """The constants and the annealed arms of a recipe, but for those of which no seed is left."""
    study = measured(RECIPES[name])
    labels = STUDIES[study].labels
    found = [points(study, arms, labels) for arms in (STUDIES[study].front, annealed(study))]
    if name == next(iter(RECIPES)):
        found[0] += points("cifar10-headline", list(HEADLINE), HEADLINE)
    constants, rising = ([point for point in arms if point[1]] for arms in found)
    return constants, rising


def draw(file: Path) -> None:
    """Seeds as small marks, their means as large ones; a line joins the constants of a recipe."""
    with picture(file, 1, (6.6, 4.2)) as (ax,):
        lost = False
        for name in RECIPES:
            constants, rising = curves(name)
            means = [statistics.mean(values) for _, values, _ in constants]
            line = [cost for cost, _, _ in constants], means
            ax.plot(*line, color=GREY, lw=1.4, zorder=1)
            plot(ax, constants, "o", GREY, line)
            plot(ax, rising, "s", ORANGE, line)
            lost = lost or any("collapsed" in label for _, _, label in rising)
            cost, values, _ = constants[-1]
            ax.annotate(
                name,
                (cost, min(values)),
                xytext=(8, -34),
                textcoords="offset points",
                ha="right" if cost > 200 else "left",
                fontsize=11,
                color=INK,
                style="italic",
            )
        ax.plot([], [], ls="none", marker="s", ms=8, color=ORANGE, label="annealed K")
        if lost:
            style = {"ls": "none", "marker": "s", "ms": 8, "mfc": "white", "color": ORANGE}
            ax.plot([], [], **style, label="annealed K, without collapsed seeds")
        ax.plot([], [], marker="o", ms=8, color=GREY, label="constant K")
        ax.legend(frameon=False, fontsize=11, loc="lower right")
        ax.set_xscale("log")
        ax.set_xticks([40, 60, 100, 150, 200, 300], ["40", "60", "100", "150", "200", "300"])
        ax.minorticks_off()
        ax.tick_params(labelsize=11)
        ax.set_xlabel("cost: gradient evaluations per training image", fontsize=11)
        ax.set_ylabel(f"{ATTACK.upper()} accuracy on CIFAR-10 (%)", fontsize=11)
        ax.margins(0.08, 0.16)


def plot(ax: Any, arms: list[Point], marker: str, colour: str, line: tuple[Any, Any]) -> None:
    """Marks with labels: above those above the line, below the others, farther away if the last is
    near. Where seeds collapsed, the mean of the others is hollow."""
    last, far = 0.0, False
    for cost, values, label in arms:
        last, far = cost, cost < NEAR * last and not far
        style = {"ls": "none", "marker": marker, "color": colour}
        mean = statistics.mean(values)
        side = 1 if marker == "s" and mean > np.interp(cost, *line) - 0.5 else -1
        kind, _, k = label.partition(",")[0].partition(" ")
        hollow = {"mfc": "white"} if "collapsed" in label else {}
        ax.plot([cost] * len(values), values, ms=3, alpha=0.45, **style)
        ax.plot(cost, mean, ms=8, **style, **hollow)
        ax.annotate(
            f"K = {k}" if kind == "constant" else k,
            (cost, max(values) if side > 0 else min(values)),
            xytext=(0, (24 if far else 7) * side),
            textcoords="offset points",
            ha="center",
            va="bottom" if side > 0 else "top",
            fontsize=10.5,
            color=colour,
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
