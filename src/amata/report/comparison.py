"""The figures of a comparison. Each has one panel, so the page can reflow them on a phone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amata.report.escape import for_figure
from amata.report.figures import INK, SERIES, drawing, save

SMOOTHING = 0.6
"""The largest smoothing weight of a curve, as in TensorBoard; short curves get less."""

SIZE = (4.6, 3.1)


class PageFigure(NamedTuple):
    """A drawn figure: the stem of its file, title, alternative text and SVG source."""

    name: str
    title: str
    alt: str
    svg: str


def smoothing_weight(result: dict[str, Any]) -> float:
    """The smoothing weight of all curves of a comparison."""
    return min(
        SMOOTHING,
        max(len([p for p in c["points"] if p["clean"] is not None]) for c in result["curves"]) / 50,
    )


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """An exponential moving average with bias correction."""
    smoothed, total = [], 0.0
    for index, value in enumerate(values, 1):
        total = weight * total + (1 - weight) * value
        smoothed.append(total / (1 - weight**index))
    return smoothed


def comparison_figures(result: dict[str, Any], folder: Path) -> list[PageFigure]:
    """Draw all figures of a comparison and write them to `folder` as SVG and PNG."""
    robust, clean = "robust error (%)", "clean error (%)"
    seconds, cost = ("train_seconds", "training time (s)"), ("grad_evals", "gradient evaluations")
    drawn = []
    if any(p["robust"] is not None for c in result["curves"] for p in c["points"]):
        drawn = [
            _curves(
                result,
                folder,
                "robust-time",
                "Robust error against training time",
                seconds,
                "robust",
                robust,
                target=True,
            ),
            _curves(
                result,
                folder,
                "clean-time",
                "Clean error against training time",
                seconds,
                "clean",
                clean,
            ),
            _curves(
                result,
                folder,
                "robust-cost",
                "Robust error against gradient evaluations",
                cost,
                "robust",
                robust,
                target=True,
            ),
            _curves(
                result,
                folder,
                "clean-cost",
                "Clean error against gradient evaluations",
                cost,
                "clean",
                clean,
            ),
        ]
    drawn += [
        _steps(result, folder, "steps", "Inner steps K", "steps", "inner steps K"),
        _steps(result, folder, "step-size", "Step size α", "step_size", "step size α"),
        _loss(result, folder),
    ]
    return [*drawn, _criterion(result, folder)] if result["criterion"] else drawn


class Line(NamedTuple):
    """The line style of a recipe, and its curves."""

    recipe: str
    colour: str
    marker: str
    style: str
    curves: list[dict[str, Any]]

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"color": self.colour, "ls": self.style}


def _lines(result: dict[str, Any]) -> list[Line]:
    found = []
    for index, row in enumerate(result["rows"]):
        colour, marker = SERIES[index % len(SERIES)]
        style = ("-", "--", ":", "-.")[index // len(SERIES) % 4]
        found.append(
            Line(
                row["recipe"],
                colour,
                marker,
                style,
                [c for c in result["curves"] if c["recipe"] == row["recipe"]],
            )
        )
    return found


def _legend(ax: Any, lines: Sequence[Line]) -> None:
    for line in lines:
        ax.plot(
            [], [], **line.kwargs, marker=line.marker, ms=4, lw=1.8, label=for_figure(line.recipe)
        )
    ax.legend(frameon=False, fontsize=9 if len(lines) < 5 else 7, ncols=1 if len(lines) < 5 else 2)


def _draw(
    folder: Path, name: str, title: str, alt: str, paint: Callable[[Any], None]
) -> PageFigure:
    with drawing(name, 1, 1, SIZE, page=True) as (axes, files):
        paint(axes[0, 0])
    save(folder / name, files)
    return PageFigure(name, title, alt, files[".svg"].decode())


def _curves(
    result: dict[str, Any],
    folder: Path,
    name: str,
    title: str,
    x: tuple[str, str],
    y: str,
    label: str,
    *,
    target: bool = False,
) -> PageFigure:
    """Error against time or cost: faint points per seed, and a smoothed line."""
    key, axis = x
    ends: list[str] = []
    weight = smoothing_weight(result)

    def paint(ax: Any) -> None:
        lines = _lines(result)
        for line in lines:
            for index, curve in enumerate(line.curves):
                points = [p for p in curve["points"] if p[y] is not None]
                xs, ys = [p[key] for p in points], [100 * (1 - p[y]) for p in points]
                ax.plot(xs, ys, **line.kwargs, marker=line.marker, ms=3.5, lw=0.8, alpha=0.35)
                ax.plot(xs, smooth(ys, weight), **line.kwargs, lw=1.8)
                if index == 0 and points:
                    ends.append(f"{line.recipe} ends at {ys[-1]:.1f}% after {_amount(xs[-1], key)}")
                for event in curve["events"]:
                    at = [p[key] for p in curve["points"] if p["epoch"] == event["epoch"]]
                    ax.plot(
                        at,
                        [0.02] * len(at),
                        "x",
                        color=line.colour,
                        ms=7,
                        transform=ax.get_xaxis_transform(),
                        clip_on=False,
                    )
        if target and result["target"]:
            level = 100 * (1 - result["target"])
            ax.axhline(level, color=INK, lw=0.9, ls="--", alpha=0.6)
            ax.annotate(
                f"target {level:.4g}%",
                (0.01, level),
                xycoords=("axes fraction", "data"),
                ha="left",
                va="bottom",
                fontsize=8,
            )
        ax.set(xlabel=axis, ylabel=label, xlim=(0, None))
        if key == "grad_evals":
            ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
        _legend(ax, lines)

    drawn = _draw(folder, name, title, "", paint)
    return drawn._replace(alt=f"{title}: {'; '.join(ends)}.")


def _epochs(ax: Any, label: str, lines: Sequence[Line]) -> None:
    last = max(p["epoch"] + 1 for line in lines for c in line.curves for p in c["points"])
    # leave room for the legend
    ax.set(xlabel="epoch", ylabel=label, ylim=(0, 1.25 * ax.get_ylim()[1]), xlim=(0.5, last + 0.5))
    ax.xaxis.get_major_locator().set_params(integer=True)
    _legend(ax, lines)


def _amount(value: float, key: str) -> str:
    return f"{value:,.0f} s" if key == "train_seconds" else f"{value:,.0f} gradient evaluations"


def _steps(
    result: dict[str, Any], folder: Path, name: str, title: str, key: str, label: str
) -> PageFigure:
    """The control of each epoch, of the first seed."""
    lines = _lines(result)

    def paint(ax: Any) -> None:
        for line in lines:
            points = line.curves[0]["points"]
            xs, ys = [p["epoch"] + 1 for p in points], [p[key] for p in points]
            ax.step(xs, ys, where="mid", **line.kwargs, lw=1.8)
            ax.plot(xs, ys, line.marker, color=line.colour, ms=3.5)
        _epochs(ax, label, lines)

    ranges = [
        f"{line.recipe} from {line.curves[0]['points'][0][key]:.4g} to "
        f"{line.curves[0]['points'][-1][key]:.4g}"
        for line in lines
    ]
    return _draw(folder, name, title, f"{title} over epochs: {'; '.join(ranges)}.", paint)


def _loss(result: dict[str, Any], folder: Path) -> PageFigure:
    lines = _lines(result)

    def paint(ax: Any) -> None:
        for line in lines:
            for curve in line.curves:
                xs, ys = (
                    [p["epoch"] + 1 for p in curve["points"]],
                    [p["loss"] for p in curve["points"]],
                )
                ax.plot(xs, ys, **line.kwargs, marker=line.marker, ms=3, lw=1.4, alpha=0.8)
        _epochs(ax, "loss on attacked images", lines)

    ends = [f"{line.recipe} ends at {line.curves[0]['points'][-1]['loss']:.3f}" for line in lines]
    return _draw(
        folder, "loss", "Training loss", f"Training loss over epochs: {'; '.join(ends)}.", paint
    )


def _criterion(result: dict[str, Any], folder: Path) -> PageFigure:
    lines = _lines(result)
    by_run = {curve["run"]: line for line in lines for curve in line.curves}

    def paint(ax: Any) -> None:
        for measured in result["criterion"]:
            epochs, line = measured["epochs"], by_run.get(measured["run"], lines[0])
            gaps = [e["best_hamiltonian"] - e["hamiltonian"] for e in epochs]
            ax.plot([e["epoch"] + 1 for e in epochs], gaps, **line.kwargs, marker=line.marker, ms=3)
        _epochs(ax, "gap to the best control", lines)

    values = "; ".join(f"{m['run']} {m['c']:.2f}" for m in result["criterion"])
    return _draw(
        folder,
        "criterion",
        "Criterion C",
        f"The optimal-control criterion C, lower is better: {values}.",
        paint,
    )
