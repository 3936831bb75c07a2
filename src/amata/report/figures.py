"""Draw figures from plain results, as SVG and PNG."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from amata.errors import InputError, missing
from amata.report.escape import for_figure
from amata.runs.files import write_atomic

INK, GREY, ORANGE, BLUE, GREEN = "#1f2328", "#7a7a7a", "#c2410c", "#1d4ed8", "#15803d"
SERIES = (
    ("#868e96", "o"),
    ("#e8590c", "s"),
    ("#228be6", "^"),
    ("#2f9e44", "D"),
    ("#ae3ec9", "v"),
    ("#e03131", "P"),
    ("#0c8599", "X"),
    ("#f08c00", "*"),
)
"""Colours and markers of recipes, the baseline first; readable on white and on black."""


@contextmanager
def figure(
    path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """A grid of axes in the package's style, saved as PATH.svg and PATH.png when the block ends."""
    with drawing(path.stem, rows, columns, size, **options) as (axes, files):
        yield axes
    save(path, files)


def save(path: Path, files: dict[str, bytes]) -> None:
    """Write the files of a figure as PATH.svg and PATH.png."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write {path}.svg ({error.strerror}); choose another folder"
        ) from None
    for suffix, content in files.items():
        write_atomic(path.with_suffix(suffix), content)


@contextmanager
def drawing(
    name: str,
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    page: bool = False,
    png: bool = True,
    **options: Any,
) -> Iterator[tuple[Any, dict[str, bytes]]]:
    """A grid of axes, and the content of its files by suffix, which is there when the block ends.

    With `page`, the SVG keeps text as text, for use inside an HTML page.
    """
    try:
        import matplotlib
    except ImportError:
        raise missing("matplotlib", f"drawing {name}", "plots") from None
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none" if page else "path",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
    }
    files: dict[str, bytes] = {}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # names in a script that the font lacks, or too long for the figure
        warnings.filterwarnings("ignore", "Glyph|constrained_layout")
        drawn = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = drawn.subplots(rows, columns, squeeze=False, **options)
        for ax in axes.flat:
            ax.grid(alpha=0.25, linewidth=0.6)
        yield axes, files
        files[".svg"] = to_svg(drawn)
        if png:
            content = BytesIO()
            drawn.savefig(content, format="png", dpi=150)
            files[".png"] = content.getvalue()


def to_svg(drawn: Any) -> bytes:
    """The figure as SVG, without its date."""
    content = BytesIO()
    drawn.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def engineering() -> Any:
    """A formatter of large numbers: 250k, 1.5M."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def legend_below(*axes: Any) -> None:
    """One legend for these axes, below all axes of their figure."""
    found = [ax.get_legend_handles_labels() for ax in axes]
    handles, names = (
        [item for part in parts for item in part] for parts in zip(*found, strict=True)
    )
    drawn = axes[0].figure
    columns = max(1, int(drawn.get_size_inches()[0] / (0.5 + 0.07 * max(map(len, names)))))
    drawn.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def search_figure(search: dict[str, Any], path: Path) -> None:
    """Held-out robust accuracy against cost for every trial, with the Pareto front. Each winner has
    a ring of its own: trials of equal cost and accuracy would hide each other."""
    with figure(path, 1, 1, (6.4, 4.5)) as axes:
        ax = axes[0, 0]
        for state, colour, label in (
            ("pruned", "#c9c9c9", "pruned (at the best epoch it reached)"),
            ("complete", INK, "trial"),
        ):
            points = [t for t in search["trials"] if t["state"] == state]
            ax.plot(
                [t["cost"] for t in points],
                [100 * t["accuracy"] for t in points],
                "o",
                color=colour,
                ms=5,
                label=label,
            )
        front = sorted({(t["cost"], 100 * t["accuracy"]) for t in search["trials"] if t["front"]})
        ax.step(*zip(*front, strict=True), where="post", color=ORANGE, lw=1.6, label="Pareto front")
        for index, t in enumerate(winners(search)):
            ax.plot(
                t["cost"],
                100 * t["accuracy"],
                "o",
                ms=10 + 5 * index,
                mfc="none",
                mec=ORANGE,
                mew=1.6,
                label=f"winner: {describe_schedule(t['schedule'])}",
            )
        ax.axvline(search["budget"], color=GREY, lw=1, ls="--", label="budget")
        ax.margins(y=0.08)
        ax.set(
            xlabel="gradient evaluations per image and epoch",
            ylabel=f"held-out {for_figure(search['attack'])} accuracy (%)",
        )
        legend_below(ax)


def winners(search: dict[str, Any]) -> list[dict[str, Any]]:
    """The best trial, and those that equal it in cost and accuracy."""
    best = search["best"]
    equal = [t for t in search["trials"] if t["front"] and t["number"] != best["number"]]
    same = ("cost", "accuracy")
    return [best, *(t for t in equal if all(t[key] == best[key] for key in same))]


def describe_schedule(schedule: dict[str, Any]) -> str:
    """A schedule on one line: linear, k_min 2, k_max 10, tau 0.5."""
    values = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in schedule.items()
        if key != "name"
    ]
    return for_figure(", ".join([str(schedule["name"]), *values]), longest=60)


def bench_figure(result: dict[str, Any], path: Path) -> None:
    """Seconds per epoch of every variant, one panel per case."""
    cases = list(dict.fromkeys((r["recipe"], r["batch"], r["steps"]) for r in result["rows"]))
    with figure(path, 1, len(cases), (max(3.0 * len(cases), 4.0), 3.0)) as axes:
        for ax, case in zip(axes[0], cases, strict=True):
            rows = [r for r in result["rows"] if (r["recipe"], r["batch"], r["steps"]) == case]
            colours = [ORANGE if r["variant"] == "fast" else GREY for r in rows]
            bars = ax.barh(
                [r["variant"] for r in rows], [r["seconds_per_epoch"] for r in rows], color=colours
            )
            labels = [
                f"{r['seconds_per_epoch']:,.{1 if r['seconds_per_epoch'] < 100 else 0}f} s"
                + (f", {r['ratio_to_reference']:.1f}x" if r["ratio_to_reference"] else "")
                for r in rows
            ]
            ax.bar_label(bars, labels, padding=3, fontsize=8)
            ax.set(
                title=f"{for_figure(case[0])}\nbatch {case[1]}, K = {case[2]}",
                xlabel="seconds per epoch",
            )
            ax.set_xlim(0, 1.75 * max(r["seconds_per_epoch"] for r in rows))
            ax.invert_yaxis()
