"""Figures of a loss landscape: contours from above, and a surface."""

from itertools import cycle
from pathlib import Path
from typing import Any

from amata.report.escape import for_figure
from amata.report.figures import BLUE, GREEN, INK, ORANGE, figure

PATHS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"), ("#7e22ce", "v"), ("#a16207", "D"))
"""Colours and markers of the attack paths."""


def landscape_figure(result: dict[str, Any], path: Path) -> None:
    """Contours of the loss, one panel per epoch, with each attack's path and final loss."""
    pictures = result["landscapes"]
    with figure(path, 1, len(pictures), (3.7 * len(pictures), 3.6)) as axes:
        for ax, picture in zip(axes[0], pictures, strict=True):
            filled = ax.contourf(
                picture["x"], picture["y"], picture["loss"], levels=24, cmap="Greys", alpha=0.75
            )
            ax.figure.colorbar(filled, ax=ax, shrink=0.85, label="loss", format="%#.3g")
            for (colour, marker), course in zip(cycle(PATHS), picture["courses"], strict=False):
                xs, ys = zip(*course["points"], strict=True)
                ax.plot(
                    xs,
                    ys,
                    color=colour,
                    marker=marker,
                    ms=3,
                    lw=1.3,
                    label=f"{for_figure(course['name'])}: {course['loss'][-1]:#.3g}",
                )
            ax.plot(0, 0, "o", color=INK, ms=5, label=f"image: {picture['clean_loss']:#.3g}")
            title = f"epoch {picture['epoch']}" if picture["epoch"] else "best model"
            ax.set(xlabel="first principal direction", ylabel="Rademacher direction", title=title)
            ax.legend(fontsize=7.5, loc="lower left")


def surface_figure(result: dict[str, Any], path: Path) -> None:
    """The same landscape as a surface."""
    pictures = result["landscapes"]
    with figure(
        path, 1, len(pictures), (4.4 * len(pictures), 4.1), subplot_kw={"projection": "3d"}
    ) as axes:
        import numpy as np

        for ax, picture in zip(axes[0], pictures, strict=True):
            across, up = np.meshgrid(picture["x"], picture["y"])
            heights = np.array(picture["loss"])
            ax.plot_surface(
                across, up, heights, cmap="Greys", alpha=0.6, rcount=50, ccount=50, linewidth=0
            )
            for (colour, marker), course in zip(cycle(PATHS), picture["courses"], strict=False):
                xs, ys = zip(*course["points"], strict=True)
                label = f"{for_figure(course['name'])}: {course['loss'][-1]:#.3g}"
                ax.plot(
                    xs,
                    ys,
                    course["loss"],
                    color=colour,
                    marker=marker,
                    ms=2.5,
                    lw=1.4,
                    label=label,
                    zorder=10,
                )
            title = f"epoch {picture['epoch']}" if picture["epoch"] else "best model"
            ax.set(
                xlabel="principal direction",
                ylabel="Rademacher direction",
                zlabel="loss",
                title=title,
            )
            ax.view_init(elev=28, azim=-125)
            ax.set_box_aspect(None, zoom=0.86)
            ax.zaxis.get_major_locator().set_params(nbins=5)
            ax.legend(fontsize=7.5, loc="upper left")
