"""The figures of a comparison: one panel each, so that they can stand side by side on a wide page and one above the other on a phone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amata.report.figures import INK, SERIES, figure

SMOOTHING = 0.6
"""The weight of the past in a smoothed curve, as in TensorBoard; less where a curve has few points, which it would only drag behind."""

SIZE = (4.6, 3.1)


class Picture(NamedTuple):
    """A figure that was drawn: its file's stem, what it shows, and the same in words for those who cannot see it."""

    name: str
    title: str
    words: str
    svg: str


def smoothing(points: int) -> float:
    return min(SMOOTHING, points / 50)


def smooth(values: Sequence[float]) -> list[float]:
    """An exponential moving average that starts unbiased: the first value is the first value."""
    weight = smoothing(len(values))
    smoothed, total = [], 0.0
    for index, value in enumerate(values, 1):
        total = weight * total + (1 - weight) * value
        smoothed.append(total / (1 - weight**index))
    return smoothed


def comparison_pictures(result: dict[str, Any], folder: Path) -> list[Picture]:
    """Every figure of a comparison, written to `folder` as SVG and PNG."""
    robust, clean = "robust error (%)", "clean error (%)"
    seconds, cost = ("train_seconds", "training time (s)"), ("grad_evals", "gradient evaluations")
    drawn = []
    if any(p["robust"] is not None for c in result["curves"] for p in c["points"]):
        drawn = [
            _curves(result, folder, "robust-time", "Robust error against training time", seconds, "robust", robust, target=True),
            _curves(result, folder, "clean-time", "Clean error against training time", seconds, "clean", clean),
            _curves(result, folder, "robust-cost", "Robust error against gradient evaluations", cost, "robust", robust, target=True),
        ]
    drawn += [
        _steps(result, folder, "steps", "Inner steps K", "steps", "inner steps K"),
        _steps(result, folder, "step-size", "Step size α", "step_size", "step size α"),
        _loss(result, folder),
    ]
    return [*drawn, _criterion(result, folder)] if result["criterion"] else drawn


def _of_recipe(result: dict[str, Any]) -> list[tuple[str, str, str, list[dict[str, Any]]]]:
    """Each recipe's name, colour, marker and curves."""
    names = [row["recipe"] for row in result["rows"]]
    return [(n, *SERIES[i % len(SERIES)], [c for c in result["curves"] if c["recipe"] == n]) for i, n in enumerate(names)]


def _draw(folder: Path, name: str, title: str, words: str, paint: Callable[[Any], None]) -> Picture:
    with figure(folder / name, 1, 1, SIZE, page=True) as axes:
        paint(axes[0, 0])
    return Picture(name, title, words, (folder / f"{name}.svg").read_text())


def _curves(
    result: dict[str, Any], folder: Path, name: str, title: str, x: tuple[str, str], y: str, label: str, *, target: bool = False
) -> Picture:
    """Error against time or cost: each seed's points faint, its smoothed course strong."""
    key, axis = x
    words = []

    def paint(ax: Any) -> None:
        for recipe, colour, marker, curves in _of_recipe(result):
            for index, curve in enumerate(curves):
                points = [p for p in curve["points"] if p[y] is not None]
                xs, ys = [p[key] for p in points], [100 * (1 - p[y]) for p in points]
                ax.plot(xs, ys, color=colour, marker=marker, ms=3.5, lw=0.8, alpha=0.35)
                ax.plot(xs, smooth(ys), color=colour, lw=1.8, label=recipe if index == 0 else None)
                if index == 0 and points:
                    words.append(f"{recipe} ends at {ys[-1]:.1f}% after {_amount(xs[-1], key)}")
                for event in curve["events"]:
                    at = [p[key] for p in curve["points"] if p["epoch"] == event["epoch"]]
                    ax.plot(at, [0.02] * len(at), "x", color=colour, ms=7, transform=ax.get_xaxis_transform(), clip_on=False)
        if target and result["target"]:
            level = 100 * (1 - result["target"])
            ax.axhline(level, color=INK, lw=0.9, ls="--", alpha=0.6)
            ax.annotate(f"target {level:.0f}%", (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        ax.set(xlabel=axis, ylabel=label, xlim=(0, None))
        if key == "grad_evals":
            ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
        ax.legend(frameon=False)

    picture = _draw(folder, name, title, "", paint)
    return picture._replace(words=f"{title}: {'; '.join(words)}.")


def _epochs(ax: Any, label: str) -> None:
    ax.set(xlabel="epoch", ylabel=label, ylim=(0, 1.25 * ax.get_ylim()[1]))  # with room for the legend
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False)


def _amount(value: float, key: str) -> str:
    return f"{value:,.0f} s" if key == "train_seconds" else f"{value:,.0f} gradient evaluations"


def _steps(result: dict[str, Any], folder: Path, name: str, title: str, key: str, label: str) -> Picture:
    def paint(ax: Any) -> None:
        for recipe, colour, _, curves in _of_recipe(result):
            points = curves[0]["points"]
            ax.step([p["epoch"] + 1 for p in points], [p[key] for p in points], where="mid", color=colour, lw=1.8, label=recipe)
        _epochs(ax, label)

    ranges = [f"{r} from {c[0]['points'][0][key]:.4g} to {c[0]['points'][-1][key]:.4g}" for r, _, _, c in _of_recipe(result)]
    return _draw(folder, name, title, f"{title} over epochs: {'; '.join(ranges)}.", paint)


def _loss(result: dict[str, Any], folder: Path) -> Picture:
    def paint(ax: Any) -> None:
        for recipe, colour, marker, curves in _of_recipe(result):
            for index, curve in enumerate(curves):
                xs, ys = [p["epoch"] + 1 for p in curve["points"]], [p["loss"] for p in curve["points"]]
                ax.plot(xs, ys, color=colour, marker=marker, ms=3, lw=1.4, alpha=0.8, label=recipe if index == 0 else None)
        _epochs(ax, "loss on attacked images")

    ends = [f"{r} ends at {c[0]['points'][-1]['loss']:.3f}" for r, _, _, c in _of_recipe(result)]
    return _draw(folder, "loss", "Training loss", f"Training loss over epochs: {'; '.join(ends)}.", paint)


def _criterion(result: dict[str, Any], folder: Path) -> Picture:
    def paint(ax: Any) -> None:
        for (colour, marker), measured in zip(SERIES, result["criterion"], strict=False):
            epochs = measured["epochs"]
            gaps = [e["best_hamiltonian"] - e["hamiltonian"] for e in epochs]
            ax.plot(
                [e["epoch"] + 1 for e in epochs],
                gaps,
                color=colour,
                marker=marker,
                ms=3,
                label=f"{measured['run']}, C = {measured['c']:.2f}",
            )
        _epochs(ax, "gap to the best control")

    words = "; ".join(f"{m['run']} {m['c']:.2f}" for m in result["criterion"])
    return _draw(folder, "criterion", "Criterion C", f"The optimal-control criterion C, lower is nearer to optimal: {words}.", paint)
