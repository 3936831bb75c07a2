"""How steep the loss of a study's arms is over their epochs, from stored results."""

import statistics
from typing import Any

import stored
from amata.report.figures import GREY, ORANGE
from amata.runs.files import read_record
from measure import STEEPNESS
from page import markdown
from study import STUDIES

NAMES = {
    "gradient_l1": "mean $|\\partial l/\\partial x|_1$",
    "curvature": "mean curvature",
}
"""What is drawn, and its axis."""


def rows_of(study: str, title: str) -> list[list[dict[str, float]]]:
    """One row per epoch, for every run where it was measured."""
    files = [run / STEEPNESS for run in stored.runs_of(study, title)]
    return [read_record(file)["epochs"] for file in files if file.is_file()]


def thirds(rows: list[dict[str, float]], key: str) -> tuple[float, float]:
    """The mean over the first and over the last third of a run's epochs."""
    values = [row[key] for row in rows]
    third = max(len(values) // 3, 1)
    return statistics.mean(values[:third]), statistics.mean(values[-third:])


def measured(study: str) -> list[str]:
    """The arms with steepness."""
    return [title for title in STUDIES[study].steepness if rows_of(study, title)]


def draw_steepness(axes: Any, study: str) -> None:
    """One panel per number: thin lines are seeds, thick ones their means."""
    for ax, (key, name) in zip(axes, NAMES.items(), strict=True):
        for title, paint in zip(measured(study), (GREY, ORANGE), strict=False):
            curves = [{row["epoch"]: row[key] for row in rows} for rows in rows_of(study, title)]
            for curve in curves:
                ax.plot(curve.keys(), curve.values(), color=paint, lw=0.6, alpha=0.45)
            epochs = sorted(set.intersection(*map(set, curves)))
            means = [statistics.mean(curve[epoch] for curve in curves) for epoch in epochs]
            ax.plot(epochs, means, color=paint, lw=2, label=STUDIES[study].labels[title])
        ax.set(xlabel="epoch", ylabel=name, ylim=(0, None))
    axes[0].legend(frameon=False)


def steepness_table(study: str) -> str:
    """Means over seeds, early and late in training."""
    rows = []
    for title in measured(study):
        runs, cells = rows_of(study, title), []
        for key in ("gradient_l1", "gradient_l2", "curvature"):
            early, late = zip(*(thirds(run, key) for run in runs), strict=True)
            cells.append(f"{statistics.mean(early):.3g} → {statistics.mean(late):.3g}")
        images = f"{int(runs[0][0]['images']):,}"
        rows.append([STUDIES[study].labels[title], *cells, images, str(len(runs))])
    head = ["steepness, first → last third", "L1 norm", "L2 norm", "curvature", "images", "seeds"]
    return markdown(head, rows)
