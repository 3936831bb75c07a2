"""The README's picture: robust accuracy against cost on CIFAR-10, annealed K beside the line of
constants."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stored
from amata.report.figures import GREY, INK, ORANGE
from differences import outcomes
from fronts import COLLAPSED
from page import picture
from study import STUDIES
from verdicts import SEEDS

ATTACK = "pgd-20"
RECIPES = {
    "the paper's recipe, 30 epochs": ("cifar10-paper-recipe", "cifar10-equal-cost"),
    "fast recipe, 19 epochs": ("cifar10-fast-recipe", "cifar10-quick-equal-cost"),
}
"""Each with its studies; the first that has results is drawn."""
HEADLINE = {"pgd10": "constant 10", "amata": "linear 2 → 10"}
"""Arms of the study `cifar10`, which has the paper's recipe too, and the same K α."""
NEAR = 1.2
"""Labels of arms touch if one costs less than this many times the other."""
Point = tuple[float, list[float], str]
"""Gradient evaluations per image, accuracy by seed, and the label."""


def points(study: str, titles: Sequence[str], labels: dict[str, str]) -> list[Point]:
    """Of the arms that have enough seeds."""
    runs = stored.summaries(study)
    return sorted(
        (
            stored.total_cost(runs[title]),
            [float(v.mean()) for v in outcomes(study, title, ATTACK).values()],
            labels[title],
        )
        for title in titles
        if len(runs.get(title, ())) >= SEEDS
    )


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
    """The constants and the annealed arms of a recipe, without those that collapsed."""
    study = measured(RECIPES[name])
    labels = STUDIES[study].labels
    found = [points(study, arms, labels) for arms in (STUDIES[study].front, annealed(study))]
    if name == next(iter(RECIPES)):
        for arms, title in zip(found, HEADLINE, strict=True):
            if HEADLINE[title] not in [label for _, _, label in arms]:
                arms += points("cifar10", [title], HEADLINE)
    best = max(statistics.mean(values) for arms in found for _, values, _ in arms)
    constants, rising = (
        [point for point in arms if statistics.mean(point[1]) > COLLAPSED * best] for arms in found
    )
    return constants, rising


def draw(file: Path) -> None:
    """Seeds as small marks, their means as large ones; a line joins the constants of a recipe."""
    with picture(file, 1, (6.6, 4.2)) as (ax,):
        for name in RECIPES:
            constants, rising = curves(name)
            means = [statistics.mean(values) for _, values, _ in constants]
            ax.plot([cost for cost, _, _ in constants], means, color=GREY, lw=1.4, zorder=1)
            plot(ax, constants, "o", GREY, -1)
            plot(ax, rising, "s", ORANGE, 1)
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
        ax.plot([], [], marker="o", ms=8, color=GREY, label="constant K")
        ax.legend(frameon=False, fontsize=11, loc="upper right")
        ax.set_xscale("log")
        ax.set_xticks([40, 60, 100, 150, 200, 300], ["40", "60", "100", "150", "200", "300"])
        ax.minorticks_off()
        ax.tick_params(labelsize=11)
        ax.set_xlabel("cost: gradient evaluations per training image", fontsize=11)
        ax.set_ylabel(f"{ATTACK.upper()} accuracy on CIFAR-10 (%)", fontsize=11)
        ax.margins(0.08, 0.16)


def plot(ax: Any, arms: list[Point], marker: str, colour: str, side: int) -> None:
    """Labels are above (side 1) or below (side -1) the marks, farther away if the last is near."""
    last, far = 0.0, False
    for cost, values, label in arms:
        last, far = cost, cost < NEAR * last and not far
        style = {"ls": "none", "marker": marker, "color": colour}
        ax.plot([cost] * len(values), values, ms=3, alpha=0.45, **style)
        ax.plot(cost, statistics.mean(values), ms=8, **style)
        kind, _, k = label.partition(",")[0].partition(" ")
        ax.annotate(
            f"K = {k}" if kind == "constant" else k,
            (cost, max(values) if side > 0 else min(values)),
            xytext=(0, (20 if far else 7) * side),
            textcoords="offset points",
            ha="center",
            va="bottom" if side > 0 else "top",
            fontsize=10.5,
            color=colour,
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
