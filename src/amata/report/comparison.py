"""The figures of a comparison. Each has one panel, so the page can reflow them on a phone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amata.report.figures import INK, SERIES, drawing, engineering, save, to_svg
from amata.report.lines import Line, add_legend, label_ends, named_at_ends, recipe_lines

WINDOW, UNSMOOTHED = 5, 15
"""Points that a smoothed curve averages; curves with fewer points than the second number are shown
as they are."""

SIZE = (3.55, 2.65)
"""In inches: texts of 9 points are at least 12 pixels high on a page 400 pixels wide."""


class PageFigure(NamedTuple):
    """A drawn figure: the stem of its file, title, alternative text and SVG source."""

    name: str
    title: str
    alt: str
    svg: str


def smoothed(result: dict[str, Any]) -> bool:
    """Whether the curves of a comparison are long enough to be smoothed."""
    counts = (len([p for p in c["points"] if p["clean"] is not None]) for c in result["curves"])
    return max(counts) >= UNSMOOTHED


def smooth(values: Sequence[float]) -> list[float]:
    """A centred moving average, which does not lag. The window shrinks towards both ends, whose
    values stay."""
    found = []
    for i in range(len(values)):
        reach = min(WINDOW // 2, i, len(values) - 1 - i)
        part = values[i - reach : i + reach + 1]
        found.append(sum(part) / len(part))
    return found


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


def _draw(
    result: dict[str, Any],
    folder: Path,
    name: str,
    title: str,
    alt: str,
    paint: Callable[[Any, list[Line]], None],
) -> PageFigure:
    """Draw a figure. Its files have a legend, if lines are not named at their ends; the page has
    one legend for all figures."""
    lines = recipe_lines(result)
    with drawing(name, 1, 1, SIZE, page=True) as (axes, files):
        ax = axes[0, 0]
        paint(ax, lines)
        svg = to_svg(ax.figure)
        if not named_at_ends(lines):
            add_legend(ax, lines)
    save(folder / name, files)
    return PageFigure(name, title, alt, svg.decode())


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
    """Error against time or cost, a line per seed. Long curves are smoothed, over faint points."""
    key, axis = x
    averaged = smoothed(result)
    ends: dict[str, tuple[Line, float, float]] = {}

    def paint(ax: Any, lines: list[Line]) -> None:
        few = len(lines) <= len(SERIES)
        for line in lines:
            for curve in line.curves:
                points = [p for p in curve["points"] if p[y] is not None]
                xs, ys = [p[key] for p in points], [100 * (1 - p[y]) for p in points]
                mark, size, width = (line.marker, 3, 1.6) if few else (".", 2, 1.1)
                if averaged:
                    ax.plot(xs, ys, mark, color=line.colour, ms=size, alpha=0.35)
                    mark, ys = "", smooth(ys)
                ax.plot(xs, ys, **line.kwargs, lw=width, marker=mark, ms=size)
                if points and xs[-1] >= ends.get(line.recipe, (line, 0.0, 0.0))[1]:
                    ends[line.recipe] = line, xs[-1], ys[-1]
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
        level = 100 * (1 - result["target"]) if target and result["target"] else None
        levels = [] if level is None else [(f"target {level:.4g}%", level)]
        for _, height in levels:
            ax.axhline(height, color=INK, lw=0.9, ls="--", alpha=0.6)
        ax.set(xlabel=axis, ylabel=label, xlim=(0, _right(ends)))
        error_axis(ax, label)
        if key == "grad_evals":
            ax.xaxis.set_major_formatter(engineering())
        label_ends(ax, list(ends.values()) if named_at_ends(lines) else [], levels)

    drawn = _draw(result, folder, name, title, "", paint)
    words = [
        f"{line.recipe} ends at {y:.1f}% after {_amount(x, key)}" for line, x, y in ends.values()
    ]
    return drawn._replace(alt=f"{title}: {'; '.join(words)}.")


def _right(ends: dict[str, tuple[Line, float, float]]) -> float | None:
    """A little beyond the last point, whose mark is whole then."""
    return 1.02 * max((x for _, x, _ in ends.values()), default=0) or None


def error_axis(ax: Any, label: str) -> None:
    """A logarithmic axis if errors span more than a factor of three: the end of training counts."""
    values = [y for line in ax.lines for y in line.get_ydata() if len(line.get_xdata()) > 1]
    low, high = min(values, default=0), max(values, default=0)
    if not 0 < 3 * low < high:
        return
    ax.set(yscale="log", ylim=(0.85 * low, 1.15 * high), ylabel=f"{label}, log scale")
    ticks = [d * 10**e for e in range(-3, 3) for d in (1, 2, 5) if low <= d * 10**e <= high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def _epochs(ax: Any, label: str, lines: Sequence[Line], key: str) -> None:
    last = max(p["epoch"] + 1 for line in lines for c in line.curves for p in c["points"])
    top = ax.get_ylim()[1]
    ax.set(xlabel="epoch", ylabel=label, ylim=(0, 1.05 * top), xlim=(0.5, last + 0.5))
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    if named_at_ends(lines):
        ends = [(line, line.curves[0]["points"][-1]) for line in lines]
        label_ends(ax, [(line, p["epoch"] + 1.5, p[key]) for line, p in ends])


def _amount(value: float, key: str) -> str:
    return f"{value:,.0f} s" if key == "train_seconds" else f"{value:,.0f} gradient evaluations"


def _steps(
    result: dict[str, Any], folder: Path, name: str, title: str, key: str, label: str
) -> PageFigure:
    """The control of each epoch, of the first seed."""

    def paint(ax: Any, lines: list[Line]) -> None:
        widths = nested_widths(len(lines))
        for line, width in zip(lines, widths, strict=True):
            points = line.curves[0]["points"]
            edges = [p["epoch"] + 0.5 for p in points] + [points[-1]["epoch"] + 1.5]
            ys = [p[key] for p in points]
            ax.step(edges, [*ys, ys[-1]], where="post", **line.kwargs, lw=width)
        _epochs(ax, label, lines, key)

    ranges = [
        f"{line.recipe} from {line.curves[0]['points'][0][key]:.4g} to "
        f"{line.curves[0]['points'][-1][key]:.4g}"
        for line in recipe_lines(result)
    ]
    return _draw(result, folder, name, title, f"{title} over epochs: {'; '.join(ranges)}.", paint)


def nested_widths(count: int) -> list[float]:
    """Line widths that shrink, so equal lines show all their colours."""
    most, least = (4.0, 1.4) if count <= 4 else (2.6, 1.1)
    step = (most - least) / max(count - 1, 1)
    return [1.8] if count == 1 else [most - step * i for i in range(count)]


def _loss(result: dict[str, Any], folder: Path) -> PageFigure:
    def paint(ax: Any, lines: list[Line]) -> None:
        for line, width in zip(lines, nested_widths(len(lines)), strict=True):
            for curve in line.curves:
                xs = [p["epoch"] + 1 for p in curve["points"]]
                ys = [p["loss"] for p in curve["points"]]
                mark = line.marker if len(xs) == 1 else None  # a line of one point is invisible
                ax.plot(xs, ys, **line.kwargs, lw=width, marker=mark, ms=4)
        _epochs(ax, "loss on attacked images", lines, "loss")

    ends = [
        f"{line.recipe} ends at {line.curves[0]['points'][-1]['loss']:.3f}"
        for line in recipe_lines(result)
    ]
    return _draw(
        result,
        folder,
        "loss",
        "Training loss",
        f"Training loss over epochs: {'; '.join(ends)}.",
        paint,
    )


def _criterion(result: dict[str, Any], folder: Path) -> PageFigure:
    def paint(ax: Any, lines: list[Line]) -> None:
        by_run = {curve["run"]: line for line in lines for curve in line.curves}
        ends = []
        for measured in result["criterion"]:
            epochs, line = measured["epochs"], by_run.get(measured["run"], lines[0])
            gaps = [e["best_hamiltonian"] - e["hamiltonian"] for e in epochs]
            xs = [e["epoch"] + 1 for e in epochs]
            ax.plot(xs, gaps, **line.kwargs, marker=line.marker, ms=3)
            ends.append((line, float(xs[-1]), gaps[-1]))
        ax.set(xlabel="epoch", ylabel="gap to the best control", ylim=(0, None))
        ax.set_xlim(0.5, max(x for _, x, _ in ends) + 0.5)
        ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if named_at_ends(lines):
            label_ends(ax, ends)

    values = "; ".join(f"{m['run']} {m['c']:.2f}" for m in result["criterion"])
    return _draw(
        result,
        folder,
        "criterion",
        "Criterion C",
        f"The optimal-control criterion C, lower is better: {values}.",
        paint,
    )
