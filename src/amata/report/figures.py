"""Figures from plain results, as SVG and PNG side by side."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from amata.errors import InputError, missing

INK, GREY, ORANGE, BLUE, GREEN = "#1f2328", "#7a7a7a", "#c2410c", "#1d4ed8", "#15803d"
CLIMBERS = ((BLUE, "o"), (GREEN, "^"), (ORANGE, "s"), ("#7e22ce", "v"), ("#a16207", "D"))
"""Colours and markers of attacks on a landscape."""
COLOURS = (ORANGE, GREY, BLUE, GREEN, "#7e22ce", "#a16207", "#0e7490", "#be185d")
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
"""Colours and markers of recipes, the first of which is what the others are held against; seen well
on white and on black."""


@contextmanager
def figure(
    path: Path,
    rows: int,
    columns: int,
    size: tuple[float, float],
    *,
    page: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """A grid of axes in the house style; saved as PATH.svg and PATH.png when the block ends. For a
    page, text stays text."""
    try:
        import matplotlib
    except ImportError:
        raise missing("matplotlib", f"drawing {path.name}", "plots") from None
    from matplotlib.figure import Figure

    style: Any = {
        "svg.hashsalt": path.stem,
        "svg.fonttype": "none" if page else "path",
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
    }
    with matplotlib.rc_context(style):
        drawing = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = drawing.subplots(rows, columns, squeeze=False, **options)
        for ax in axes.flat:
            ax.grid(alpha=0.25, linewidth=0.6)
        yield axes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            drawing.savefig(path.with_suffix(".svg"), metadata={"Date": None})
            drawing.savefig(path.with_suffix(".png"), dpi=150)
        except OSError as error:
            raise InputError(
                f"cannot write {path}.svg ({error.strerror}); choose another folder"
            ) from None


def criterion_figure(strategies: list[dict[str, Any]], path: Path) -> None:
    """Per strategy: max_v H and H(u_t) over epochs, the gap between them being C; below, K_t and
    the K of the best control."""
    columns = len(strategies)
    with figure(
        path, 2, columns, (max(2.9 * columns, 4.2), 4.6), sharex="col", sharey="row"
    ) as axes:
        for column, s in enumerate(strategies):
            epochs = [e["epoch"] + 1 for e in s["epochs"]]
            top, bottom = axes[0, column], axes[1, column]
            best, own = (
                [e["best_hamiltonian"] for e in s["epochs"]],
                [e["hamiltonian"] for e in s["epochs"]],
            )
            top.fill_between(epochs, own, best, color=ORANGE, alpha=0.15, linewidth=0)
            top.plot(epochs, best, color=ORANGE, marker="o", ms=3, label="max over v of H(v)")
            top.plot(epochs, own, color=INK, marker="o", ms=3, label="H(u_t)")
            error = f" ± {s['c_stderr']:.2f}" if s["c_stderr"] is not None else ""
            top.set_title(f"{s['strategy']}\nC = {s['c']:.2f}{error}")
            bottom.step(
                epochs,
                [e["best_steps"] for e in s["epochs"]],
                where="mid",
                color=ORANGE,
                label="K of the best v",
            )
            bottom.step(
                epochs, [e["steps"] for e in s["epochs"]], where="mid", color=INK, label="K_t"
            )
            bottom.set_xlabel("epoch")
            bottom.xaxis.get_major_locator().set_params(integer=True)
        axes[0, 0].set_ylabel("Hamiltonian")
        axes[1, 0].set_ylabel("inner steps K")
        axes[1, 0].set_ylim(0, None)
        axes[0, 0].legend(frameon=False, fontsize=8)
        axes[1, 0].legend(frameon=False, fontsize=8)


def toy_figure(toy: dict[str, Any], path: Path) -> None:
    """K*(t) by three ways beside Constant and Linear; theta(t); and the inner loss landscape at
    three times."""
    t, theta = toy["t"], toy["theta"]
    with figure(path, 1, 3, (10.2, 3.2)) as axes:
        k, state, land = axes[0]
        k.plot(t, toy["k_closed_form"], color=ORANGE, lw=5, alpha=0.35, label="closed form")
        k.plot(
            t,
            toy["k_msa"],
            color=ORANGE,
            lw=1.4,
            label=f"successive approximations, C = {toy['c_msa']:.1g}",
        )
        k.plot(t, toy["k_greedy"], color=INK, lw=1, ls=":", label="greedy")
        k.plot(t, toy["k_linear"], color=BLUE, lw=1.2, label=f"Linear, C = {toy['c_linear']:.2g}")
        k.plot(
            t, toy["k_constant"], color=GREY, lw=1.2, label=f"Constant, C = {toy['c_constant']:.2g}"
        )
        k.set(
            xlabel="time t",
            ylabel="inner steps K",
            ylim=(0, 1.75 * max(toy["k_constant"])),
            title="the optimal schedule anneals",
        )
        k.legend(frameon=False, fontsize=7.5, loc="upper left")
        state.plot(t, toy["theta_closed_form"], color=ORANGE, lw=5, alpha=0.35, label="closed form")
        state.plot(t, theta, color=ORANGE, lw=1.4, label="successive approximations")
        state.axhline(0, color=GREEN, lw=1, label="robust minimum")
        minimum = (2**0.5 - 1) ** 0.5 * (1 if toy["theta0"] > 0 else -1)
        state.axhline(minimum, color=GREY, lw=1, ls="--", label="non-robust minimum")
        state.set(xlabel="time t", ylabel="theta", title="and leads to the robust minimum")
        state.legend(frameon=False, fontsize=7.5)
        reach = 1.6 * abs(toy["theta0"])
        xs = [-reach / 3 + (4 / 3 * reach) * i / 200 for i in range(201)]
        xs = xs if toy["theta0"] > 0 else [-x for x in xs]
        for part, colour in ((0, GREY), (len(t) // 2, BLUE), (len(t) - 1, ORANGE)):
            at = theta[part]
            # the height of the maximum is left out: shapes are compared
            values = [-((x - at) ** 2) / (at**2 + 1) for x in xs]
            land.plot(
                xs,
                values,
                color=colour,
                lw=1.4,
                label=f"t = {t[part]:.2g}, K* = {toy['k_closed_form'][part]:.1f}",
            )
            land.plot([0, at], [-(at**2) / (at**2 + 1), 0], "o", color=colour, ms=3.5)
        land.set(
            xlabel="x",
            ylabel="l(theta, x) less its maximum",
            title="as the landscape in x gets steeper",
        )
        land.legend(frameon=False, fontsize=7.5, loc="lower center")


def search_figure(search: dict[str, Any], path: Path) -> None:
    """Held-out robust accuracy against cost for every trial, with the Pareto front."""
    with figure(path, 1, 1, (6.4, 4.0)) as axes:
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
        front = sorted((t["cost"], 100 * t["accuracy"]) for t in search["trials"] if t["front"])
        ax.step(*zip(*front, strict=True), where="post", color=ORANGE, lw=1.6, label="Pareto front")
        best = search["best"]
        ax.plot(
            best["cost"],
            100 * best["accuracy"],
            "o",
            ms=11,
            mfc="none",
            mec=ORANGE,
            mew=2,
            label=f"winner: {best['schedule']['name']}",
        )
        ax.axvline(search["budget"], color=GREY, lw=1, ls="--")
        ax.text(
            search["budget"],
            ax.get_ylim()[0],
            "budget ",
            color=GREY,
            fontsize=8,
            va="bottom",
            ha="right",
        )
        ax.set(
            xlabel="gradient evaluations per image and epoch",
            ylabel=f"held-out {search['attack']} accuracy (%)",
        )
        ax.legend(frameon=False, fontsize=8, loc="upper left")


def convergence_figure(study: dict[str, Any], path: Path) -> None:
    """The mean squared gradient against Theorem 1's bound, over T and over delta."""
    with figure(path, 1, 2, (9.0, 3.6)) as axes:
        over_steps, over_delta = axes[0]
        names = list(dict.fromkeys(row["schedule"] for row in study["over_steps"]))
        for name, colour in zip(names, COLOURS, strict=False):
            rows = [row for row in study["over_steps"] if row["schedule"] == name]
            steps = [row["steps"] for row in rows]
            over_steps.loglog(
                steps, [row["squares"] for row in rows], color=colour, marker="o", ms=3, label=name
            )
            over_steps.loglog(steps, [row["printed"] for row in rows], color=colour, ls="--", lw=1)
        over_steps.plot([], [], color=INK, ls="--", lw=1, label="its bound, with its own delta")
        over_steps.set(xlabel="outer steps T", ylabel="mean |grad L|²", title="over T")
        rows = sorted(study["over_delta"], key=lambda row: row["delta"])
        delta = [row["delta"] for row in rows]
        over_delta.loglog(
            delta,
            [row["squares"] for row in rows],
            color=ORANGE,
            marker="o",
            ms=3,
            ls="none",
            label="measured, PGD-1 to PGD-64",
        )
        over_delta.loglog(
            delta,
            [row["printed"] for row in rows],
            color=INK,
            ls="--",
            lw=1,
            label="bound as printed",
        )
        over_delta.loglog(
            delta,
            [row["derived"] for row in rows],
            color=BLUE,
            ls=":",
            lw=1.3,
            label="bound as the proof gives it",
        )
        over_delta.set(
            xlabel="delta, largest error of the inner maximisation",
            title=f"over delta, T = {rows[0]['steps']}",
        )
        for ax in (over_steps, over_delta):
            ax.legend(frameon=False, fontsize=8)


def bench_figure(result: dict[str, Any], path: Path) -> None:
    """Seconds per epoch of every variant, case by case."""
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
            ax.set(title=f"{case[0]}\nbatch {case[1]}, K = {case[2]}", xlabel="seconds per epoch")
            ax.set_xlim(0, 1.35 * max(r["seconds_per_epoch"] for r in rows))
            ax.invert_yaxis()


def landscape_figure(result: dict[str, Any], path: Path) -> None:
    """The loss from above, a panel per epoch, with each attack's course and the loss it reached."""
    pictures = result["landscapes"]
    with figure(path, 1, len(pictures), (3.7 * len(pictures), 3.6)) as axes:
        for ax, picture in zip(axes[0], pictures, strict=True):
            filled = ax.contourf(
                picture["x"], picture["y"], picture["loss"], levels=24, cmap="Greys", alpha=0.75
            )
            ax.figure.colorbar(filled, ax=ax, shrink=0.85, label="loss", format="%#.3g")
            for (colour, marker), course in zip(cycle(CLIMBERS), picture["courses"], strict=False):
                xs, ys = zip(*course["points"], strict=True)
                ax.plot(
                    xs,
                    ys,
                    color=colour,
                    marker=marker,
                    ms=3,
                    lw=1.3,
                    label=f"{course['name']}: {course['loss'][-1]:#.3g}",
                )
            ax.plot(0, 0, "o", color=INK, ms=5, label=f"image: {picture['clean_loss']:#.3g}")
            title = f"epoch {picture['epoch']}" if picture["epoch"] else "best model"
            ax.set(xlabel="first principal direction", ylabel="Rademacher direction", title=title)
            ax.legend(fontsize=7.5, loc="lower left")


def surface_figure(result: dict[str, Any], path: Path) -> None:
    """The same as a surface, the loss upwards."""
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
            for (colour, marker), course in zip(cycle(CLIMBERS), picture["courses"], strict=False):
                xs, ys = zip(*course["points"], strict=True)
                label = f"{course['name']}: {course['loss'][-1]:#.3g}"
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
