"""amata toy and convergence: problems whose solution or bound is known."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import Json, app, make_folder
from amata.errors import check_installed

Out = Annotated[
    Path | None, typer.Option(help="A folder for figures and JSON; default: write none.")
]


@app.command(epilog="Example: amata toy --theta0 1 --tau 3 --out runs/toy")
def toy(
    theta0: Annotated[float, typer.Option(help="Initial weight.")] = 1.0,
    tau: Annotated[float, typer.Option(help="K alpha; above 1 + theta0^2.")] = 3.0,
    horizon: Annotated[float, typer.Option(help="Length of training.")] = 2.0,
    gamma: Annotated[float, typer.Option(help="The weight of a step.")] = 0.04,
    parts: Annotated[int, typer.Option(min=2, max=10_000, help="Time steps.")] = 100,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Solve the paper's toy problem in three ways: closed form, Pontryagin's principle, greedy."""
    from amata.console import out as console
    from amata.control.toy import Toy
    from amata.report.control import toy_figure

    problem = Toy(theta0=theta0, tau=tau, horizon=horizon, gamma=gamma, parts=parts)
    _check_folder(out, "toy")
    result = problem.report()
    _write(result, out, "toy", toy_figure)
    if json_:
        print(json.dumps(result, indent=2))
        return
    worst = max(
        abs(a / b - 1) for a, b in zip(result["k_msa"], result["k_closed_form"], strict=True)
    )
    console.print(
        f"K*(t) from {problem.first_order(0):.3f} to {problem.constant():.3f}; "
        f"MSA agrees to {worst:.1e}"
    )
    console.print("schedule     C over the whole interval")
    for name in ("optimal", "msa", "linear", "first_order", "constant"):
        console.print(f"{name:12} {result[f'c_{name}']:.3g}")


@app.command(epilog="Example: amata convergence --out runs/convergence")
def convergence(
    repeats: Annotated[
        int, typer.Option(min=1, max=100_000, help="Independent runs per expectation.")
    ] = 64,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Compare the gradient on a problem with known constants with the bound of Theorem 1."""
    from amata.console import out as console
    from amata.control.convergence import study
    from amata.report.control import convergence_figure

    _check_folder(out, "convergence")
    result = study(repeats=repeats)
    _write(result, out, "convergence", convergence_figure)
    if json_:
        print(json.dumps(result, indent=2))
        return
    console.print(
        f"{'schedule':14} {'T':>6} {'mean K':>7} {'delta':>7} {'mean delta_t^2':>15} "
        f"{'mean |grad L|^2':>16} {'bound':>8} {'printed':>8}"
    )
    for row in [*result["over_steps"], *result["over_delta"]]:
        console.print(
            f"{row['schedule']:14} {row['steps']:6d} {row['cost']:7.2f} {row['delta']:7.3f} "
            f"{row['mean_delta_squared']:15.4f} {row['squares']:16.4f} {row['corrected']:8.3f} "
            f"{row['printed']:8.3f}"
        )


def _check_folder(out: Path | None, name: str) -> None:
    if out is not None:
        check_installed("matplotlib", f"drawing {name}.svg", "plots")
        make_folder(out, *(f"{name}.{kind}" for kind in ("json", "svg", "png")))


def _write(result: dict[str, Any], out: Path | None, name: str, draw: Any) -> None:
    from amata.runs.files import write_json

    if out is not None:
        draw(result, out / name)
        write_json(out / f"{name}.json", result)
