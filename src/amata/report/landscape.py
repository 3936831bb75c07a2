"""Figures of a loss landscape: contours with the attack paths, the loss along the paths, and the
images; and a surface."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from amata.formatting import to_text
from amata.report.comparison import PageFigure, nested_widths
from amata.report.escape import for_figure
from amata.report.figures import BLUE, GREEN, INK, ORANGE, drawing, figure, save
from amata.report.lines import spread

PATHS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"), ("#7e22ce", "v"), ("#a16207", "D"))
"""Colours and markers of the attack paths."""
LEVELS = 25
LONG = 12
"""Paths of more steps have no marker at every step."""

Picture = dict[str, Any]


def landscape_figure(result: dict[str, Any], images: Sequence[Any], path: Path) -> None:
    """One column per epoch: contours of the loss with each attack's path, the loss along the paths,
    and the images. A single epoch has them side by side."""
    columns = len(result["landscapes"])
    with _axes(path.stem, columns, (0.6 + 3.3 * columns, 6.9), wide=columns == 1) as (axes, files):
        _paint(axes, result, images, range(columns))
        axes[0, 0].figure.suptitle(title(result), fontsize=11)
    save(path, files)


def epoch_figures(result: dict[str, Any], images: Sequence[Any]) -> list[PageFigure]:
    """The columns of `landscape_figure` one by one, for a page."""
    drawn, single = [], len(result["landscapes"]) == 1
    for index, picture in enumerate(result["landscapes"]):
        name = f"landscape-{index}"
        with _axes(name, 1, (3.5, 6.9), wide=single, png=False) as (axes, files):
            _paint(axes, result, images, [index])
            axes[0, 0].set_title("")  # the page has it
        ends = "; ".join(f"{c['name']} {c['loss'][-1]:.3g}" for c in picture["courses"])
        alt = f"Loss around the image, {epoch_title(picture)}. Final losses: {ends}."
        svg = files[".svg"].decode()
        drawn.append(PageFigure(name, epoch_title(picture), alt, svg))
    return drawn


@contextmanager
def _axes(
    name: str, columns: int, size: tuple[float, float], *, wide: bool, png: bool = True
) -> Iterator[tuple[Any, dict[str, bytes]]]:
    """Axes of plane, climb and images in columns; with `wide`, one such column lies on its side."""
    if not wide:
        ratios = {"height_ratios": (3.0, 1.5, 1.3)}
        with drawing(name, 3, columns, size, png=png, gridspec_kw=ratios) as drawn:
            yield drawn
        return
    ratios = {"width_ratios": (3.4, 2.4, 3.2)}
    with drawing(name, 1, 3, (10.4, 3.7), png=png, gridspec_kw=ratios) as (axes, files):
        yield axes.T, files


def title(result: dict[str, Any]) -> str:
    """Which model and which image."""
    recipe, label = for_figure(result["recipe"]), for_figure(result["label_name"])
    return f"{recipe}, test image {result['image']}, true label {label}"


def epoch_title(picture: Picture) -> str:
    return f"epoch {picture['epoch']}" if picture["epoch"] else "best model"


def loss_scale(result: dict[str, Any]) -> tuple[list[float], Any]:
    """One colour scale for all epochs: levels, and a logarithmic norm if losses span decades."""
    from matplotlib.colors import LogNorm, Normalize

    values = [v for p in result["landscapes"] for row in p["loss"] for v in row]
    low, high = min(values), max(values)
    high = high if high > low else low + 1e-6
    if high > 30 * low:
        low = max(low, 1e-4 * high)
        levels = [low * (high / low) ** (i / LEVELS) for i in range(LEVELS + 1)]
        return levels, LogNorm(low, high)
    step = (high - low) / LEVELS
    return [low + step * i for i in range(LEVELS + 1)], Normalize(low, high)


def _paint(axes: Any, result: dict[str, Any], images: Sequence[Any], shown: Sequence[int]) -> None:
    levels, norm = loss_scale(result)
    filled = None
    for column, index in enumerate(shown):
        picture = result["landscapes"][index]
        plane, climb, strip = axes[:, column]
        filled = _contours(plane, picture, levels, norm)
        _losses(climb, picture)
        _images(strip, picture, images[index])
        for ax in (plane, climb):
            ax.set_xlim(*(picture["x"][i] / picture["units"][0] for i in (0, -1)))
        if column == 0:
            plane.set_ylabel("Rademacher direction (× eps)")
            climb.set_ylabel("loss along the path")
    fig = axes[0, 0].figure
    bar = fig.colorbar(filled, ax=list(axes[0]), shrink=0.9, label="loss", pad=0.01)
    ticks = _ticks(levels)
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.ax.minorticks_off()
    handles, names = axes[0, 0].get_legend_handles_labels()
    tall = fig.get_figwidth() < fig.get_figheight()
    fig.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=2 if tall else len(names),
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
    )


def _ticks(levels: list[float]) -> list[float]:
    """Round numbers within the levels: decades and their thirds, or about five equal steps."""
    low, high = levels[0], levels[-1]
    found = [d * 10.0**e for e in range(-8, 6) for d in (1, 3)]
    found = [tick for tick in found if low <= tick <= high]
    if high > 30 * low and len(found) > 2:
        return found
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(5).tick_values(low, high)
    return [float(tick) for tick in ticks if low <= tick <= high]


def _outlined(width: float) -> list[Any]:
    """A white outline, to tell a line from the contours and from other lines."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


def _contours(ax: Any, picture: Picture, levels: list[float], norm: Any) -> Any:
    """The loss on the plane, the edge of the ball, and the paths, in multiples of eps."""
    across, up = picture["units"]
    filled = ax.contourf(
        [v / across for v in picture["x"]],
        [v / up for v in picture["y"]],
        picture["loss"],
        levels=levels,
        norm=norm,
        cmap="Greys",
        alpha=0.75,
        extend="both",
    )
    for key, style, label in (
        ("edge", "-", "ball in the plane"),
        ("shadow", ":", "ball, projected"),
    ):
        if key == "shadow" and picture["norm"] == "l2":
            continue  # the same circle
        ax.plot(
            [x / across for x, _ in picture[key]],
            [y / up for _, y in picture[key]],
            color=INK,
            ls=style,
            lw=1.1,
            label=label,
            path_effects=_outlined(2.4),
        )
    widths = nested_widths(len(picture["courses"]))
    for (colour, marker), course, width in zip(
        cycle(PATHS), picture["courses"], widths, strict=False
    ):
        xs = tuple(x / across for x, _ in course["points"])
        ys = tuple(y / up for _, y in course["points"])
        ax.plot(xs, ys, color=colour, lw=width, path_effects=_outlined(width + 1.2))
        if course["steps"] <= LONG:
            ax.plot(xs, ys, marker, color=colour, ms=width + 1.8)
        label, size = for_figure(course["name"].partition(", K")[0]), width + 5
        ax.plot(
            xs[-1], ys[-1], marker, color=colour, ms=size, mec="white", mew=0.9, ls="", label=label
        )
    ax.plot(0, 0, "o", color=INK, ms=6, mec="white", mew=0.9, ls="", label="clean image (start)")
    ax.set_ylim(picture["y"][0] / up, picture["y"][-1] / up)
    ax.set_aspect("equal", adjustable="box")
    eps = f"eps = {to_text(picture['eps'])}"
    ax.set(title=epoch_title(picture), xlabel=f"principal direction (× eps; {eps})")
    return filled


def _losses(ax: Any, picture: Picture) -> None:
    """The loss at each step of a path, over the same X axis; the final losses at the right."""
    across = picture["units"][0]
    ends = []
    for (colour, marker), course in zip(cycle(PATHS), picture["courses"], strict=False):
        xs = [x / across for x, _ in course["points"]]
        small = {"marker": marker, "ms": 2.5} if course["steps"] <= LONG else {}
        ax.plot(xs, course["loss"], color=colour, lw=1.2, **small)
        ax.plot(xs[-1], course["loss"][-1], marker, color=colour, ms=6, mec="white", mew=0.8)
        ends.append((course["loss"][-1], colour))
    ax.plot(0, picture["clean_loss"], "o", color=INK, ms=5, mec="white", mew=0.8)
    ax.margins(y=0.12)
    ax.set_ylim(*ax.get_ylim())
    ax.set_xlabel("principal direction (× eps)")
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = [float(to_axes.transform((0, loss))[1]) for loss, _ in ends]
    gap = 0.15 if ax.get_gridspec().nrows > 1 else 0.07
    for (loss, colour), place in zip(ends, spread(heights, gap), strict=True):
        ax.annotate(
            f"{loss:.3g}",
            (1.02, place),
            xycoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def _images(ax: Any, picture: Picture, image: Any) -> None:
    """The clean image, the adversarial image and their difference, with the predictions."""
    ax.set_axis_off()
    eps, difference = picture["eps"], image.adversarial - image.clean
    limit = eps if picture["norm"] == "linf" else float(abs(difference).max()) or eps
    attack = for_figure(picture["courses"][0]["name"])
    grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if image.clean.ndim == 2 else {}
    both = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} if grey else {}
    shown = difference if grey else (0.5 + 0.5 * difference / limit).clip(0, 1)
    for place, (name, pixels, options, below) in enumerate(
        (
            ("clean", image.clean, grey, _prediction(picture["clean"])),
            (attack, image.adversarial.clip(0, 1), grey, _prediction(picture["adversarial"])),
            (
                "difference",
                shown,
                both,
                f"±{to_text(limit) if limit == eps else format(limit, '.2g')}",
            ),
        )
    ):
        part = ax.inset_axes((0.345 * place, 0.16, 0.31, 0.7))
        part.imshow(pixels, interpolation="nearest", **options)
        part.set(xticks=[], yticks=[])
        part.grid(visible=False)
        part.set_title(name, fontsize=9, pad=3)
        part.set_xlabel(below, fontsize=9, labelpad=2)


def _prediction(predicted: dict[str, Any]) -> str:
    name = for_figure(predicted["name"])
    name = name if len(name) <= 9 else f"{name[:8]}…"
    return f"{name}\n{predicted['probability']:.0%}"


def surface_figure(result: dict[str, Any], path: Path) -> None:
    """The same landscape as a surface, with the colours and heights shared by all epochs."""
    pictures = result["landscapes"]
    _, norm = loss_scale(result)
    top = max(v for p in pictures for row in p["loss"] for v in row)
    with figure(
        path, 1, len(pictures), (4.4 * len(pictures), 4.6), subplot_kw={"projection": "3d"}
    ) as axes:
        import numpy as np

        for ax, picture in zip(axes[0], pictures, strict=True):
            units = picture["units"]
            across, up = np.meshgrid(
                [v / units[0] for v in picture["x"]], [v / units[1] for v in picture["y"]]
            )
            ax.plot_surface(
                across,
                up,
                np.array(picture["loss"]),
                cmap="Greys",
                norm=norm,
                alpha=0.6,
                rcount=50,
                ccount=50,
                linewidth=0,
            )
            for (colour, marker), course in zip(cycle(PATHS), picture["courses"], strict=False):
                xs, ys = zip(*course["points"], strict=True)
                ax.plot(
                    [v / units[0] for v in xs],
                    [v / units[1] for v in ys],
                    course["loss"],
                    color=colour,
                    marker=marker,
                    ms=2.5,
                    lw=1.4,
                    label=for_figure(course["name"].partition(", K")[0]),
                    zorder=10,
                )
            ax.set(
                xlabel="principal (× eps)",
                ylabel="Rademacher (× eps)",
                zlabel="loss",
                title=epoch_title(picture),
                zlim=(0, top),
            )
            ax.view_init(elev=28, azim=-125)
            ax.set_box_aspect(None, zoom=0.86)
            ax.zaxis.get_major_locator().set_params(nbins=5)
        fig = axes[0, 0].figure
        fig.suptitle(title(result), fontsize=11)
        handles, names = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
