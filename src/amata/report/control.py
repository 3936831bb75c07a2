"""Figures of the control problem: the criterion C, the toy problems and Theorem 1's bound."""

from pathlib import Path
from typing import Any

from amata.report.comparison import UNSMOOTHED, smooth
from amata.report.escape import for_figure
from amata.report.figures import BLUE, GREEN, GREY, INK, ORANGE, figure, legend_below

COLOURS = (ORANGE, GREY, BLUE, GREEN, "#7e22ce", "#a16207", "#0e7490", "#be185d")


def criterion_figure(strategies: list[dict[str, Any]], path: Path) -> None:
    """One column per strategy: C of every epoch, the gap to the best control, with its standard
    error and its price term; below, K_t and the K of the best control; then, for several values of
    gamma, C and its two terms. C is drawn as a smoothed line over its points if the run is long: an
    epoch's value is noisy."""
    columns, swept = len(strategies), len(strategies[0]["sweep"]) > 1
    rows = 3 if swept else 2
    with figure(path, rows, columns, (max(2.9 * columns, 4.2), 2.45 * rows), sharey="row") as axes:
        for column, s in enumerate(strategies):
            epochs = [e["epoch"] + 1 for e in s["epochs"]]
            top, bottom = axes[0, column], axes[1, column]
            gaps = [e["c"] for e in s["epochs"]]
            errors = [e["c_stderr"] or 0.0 for e in s["epochs"]]
            top.errorbar(
                epochs, gaps, errors, fmt="o", color=ORANGE, ms=3, lw=1, label="C of an epoch ± SE"
            )
            line = smooth(gaps) if len(gaps) >= UNSMOOTHED else gaps
            top.plot(epochs, line, color=ORANGE, lw=1.2, alpha=0.7)
            top.axhline(s["c"], color=INK, lw=1, ls="--", label="C, the mean")
            price = [e["c_price"] for e in s["epochs"]]
            top.plot(epochs, price, color=BLUE, lw=1, ls=":", label="price term of C")
            error = f" ± {s['c_stderr']:.2f}" if s["c_stderr"] is not None else ""
            top.set_title(f"{for_figure(s['strategy'])}\nC = {s['c']:.2f}{error}")
            bottom.step(
                epochs, [e["steps"] for e in s["epochs"]], where="mid", color=INK, label="K_t"
            )
            bottom.plot(
                epochs,
                [e["best_steps"] for e in s["epochs"]],
                "o",
                color=ORANGE,
                ms=4,
                label="K of the best control",
            )
            bottom.set_xlabel("epoch")
            for ax in (top, bottom):
                ax.xaxis.get_major_locator().set_params(integer=True)
            if swept:
                _draw_sweep(axes[2, column], s["sweep"])
        axes[0, 0].set_ylabel(f"C at gamma {strategies[0]['sweep'][0]['gamma']:g}")
        axes[1, 0].set(ylabel="inner steps K", ylim=(0, None))
        if swept:
            axes[2, 0].set_ylabel("C and its two terms")
        legend_below(*axes[:, 0])


def _draw_sweep(ax: Any, sweep: list[dict[str, Any]]) -> None:
    sweep = sorted(sweep, key=lambda at: at["gamma"])
    gammas = [at["gamma"] for at in sweep]
    styles = {
        "c": ("C at gamma", INK, "-"),
        "c_gain": ("gradient term at gamma", ORANGE, "--"),
        "c_price": ("price term at gamma", BLUE, ":"),
    }
    for key, (label, colour, dashes) in styles.items():
        ys = [at[key] for at in sweep]
        ax.plot(gammas, ys, color=colour, ls=dashes, lw=1.2, marker="o", ms=3, label=label)
    ax.set_xlabel("gamma")


def toy_figure(toy: dict[str, Any], path: Path) -> None:
    """K*(t) found in three ways, its first-order expansion, Constant and Linear; theta(t); the
    inner loss at three times."""
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
            t,
            toy["k_first_order"],
            color=GREEN,
            lw=1.2,
            ls="--",
            label=f"first order at t = 0, C = {toy['c_first_order']:.2g}",
        )
        k.plot(
            t, toy["k_constant"], color=GREY, lw=1.2, label=f"Constant, C = {toy['c_constant']:.2g}"
        )
        k.set(
            xlabel="time t",
            ylabel="inner steps K",
            ylim=(0, 2 * max(toy["k_constant"])),
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
            # shifted to a maximum of 0, to compare shapes
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


def convergence_figure(study: dict[str, Any], path: Path) -> None:
    """The mean squared gradient against Theorem 1's bound, over T and over delta; delta_t^2 over
    time for schedules of equal cost."""
    with figure(path, 1, 3, (13.0, 3.8)) as axes:
        over_steps, over_delta, over_time = axes[0]
        names = list(dict.fromkeys(row["schedule"] for row in study["over_steps"]))
        for name, colour in zip(names, COLOURS, strict=False):
            rows = [row for row in study["over_steps"] if row["schedule"] == name]
            steps = [row["steps"] for row in rows]
            over_steps.loglog(
                steps, [row["squares"] for row in rows], color=colour, marker="o", ms=3, label=name
            )
            over_steps.loglog(
                steps, [row["corrected"] for row in rows], color=colour, ls="--", lw=1
            )
            if name in study["over_time"]:
                curve = study["over_time"][name]
                label = f"{name}: mean {rows[-1]['mean_delta_squared']:.3f}"
                over_time.plot(
                    [(i + 0.5) / len(curve) for i in range(len(curve))],
                    curve,
                    color=colour,
                    label=label,
                )
        over_steps.plot([], [], color=INK, ls="--", lw=1, label="its bound, with its own delta_t")
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
            [row["corrected"] for row in rows],
            color=BLUE,
            ls=":",
            lw=1.3,
            label="corrected bound, with delta_t",
        )
        over_delta.set(
            xlabel="delta, largest error of the inner maximisation",
            title=f"over delta, T = {rows[0]['steps']}",
        )
        over_time.set(
            xlabel="t / T",
            ylabel="delta_t²",
            title=f"at equal cost, T = {study['over_steps'][-1]['steps']}",
        )
        for ax in (over_steps, over_delta, over_time):
            ax.legend(frameon=False, fontsize=8)
