"""amata criterion, search, toy and convergence: training as a control problem."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import Json, Set, app, make_folder
from amata.errors import InputError

Out = Annotated[
    Path | None, typer.Option(help="A folder for figures and JSON; none are written without it.")
]


@app.command(
    epilog="Example: amata criterion mnist5k-pgd mnist5k-pgd2 mnist5k-amata --out runs/criterion"
)
def criterion(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|RECIPE...", help="Run folders that kept their epochs, or recipes to train."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="A folder for what is trained and measured; the same one goes on with it."
        ),
    ],
    set_: Set = [],  # noqa: B006
    gamma: Annotated[float, typer.Option(help="The price of a unit of cost.")] = 0.04,
    cost: Annotated[
        str, typer.Option(help="What is paid for: steps (the paper's), gradients or seconds.")
    ] = "steps",
    z: Annotated[
        str | None,
        typer.Option(metavar="K,ALPHA", help="Use the inner-product form with this fixed control."),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Probe batches.")] = 4,
    k_max: Annotated[
        int | None,
        typer.Option(min=1, help="The largest K of G; the strategies' largest by default."),
    ] = None,
    alphas: Annotated[int, typer.Option(min=1, help="Step sizes tried for every K.")] = 6,
    search: Annotated[
        str, typer.Option(help="Where step sizes come from: grid, tpe or gp.")
    ] = "grid",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json_: Json = False,
) -> None:
    """Score strategies by the optimal-control criterion C, beside robustness, time and cost: the
    paper's Table 1."""
    from amata.console import ConsoleReporter, criterion_table
    from amata.console import out as console
    from amata.report.figures import criterion_figure
    from amata.studies.criterion import CriterionSettings, measure_strategies, parse_z, strategies

    settings = CriterionSettings(
        gamma=gamma,
        cost=cost,
        z=parse_z(z) if z else None,
        batches=batches,
        k_max=k_max,
        alphas=alphas,
        search=search,
        seed=seed,
    )
    make_folder(out)
    with ConsoleReporter() as reporter:
        rows = measure_strategies(strategies(targets, set_, out, reporter), settings, out, reporter)
    criterion_figure(rows, out / "criterion")
    if json_:
        print(json.dumps({"gamma": gamma, "strategies": rows}, indent=2))
    else:
        console.print(criterion_table(rows))
        console.print(f"written {out / 'criterion.json'}, {out / 'criterion.svg'}", soft_wrap=True)


@app.command(
    epilog="Example: amata search mnist5k-amata --budget 0.6 --trials 20 --out runs/search"
)
def search(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A built-in recipe's name, or a TOML file; its schedule is what is searched for."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The study's folder. The same one goes on with it; several processes may share it."
        ),
    ],
    set_: Set = [],  # noqa: B006
    budget: Annotated[
        float | None, typer.Option(help="The most to spend, as a share of PGD-K's cost.")
    ] = None,
    grad_evals: Annotated[
        int | None,
        typer.Option(min=1, help="The most to spend, in gradient evaluations of the whole run."),
    ] = None,
    reference_steps: Annotated[
        int | None, typer.Option(min=1, help="K of the PGD-K that --budget is a share of.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="robust: held-out robust accuracy. criterion: the lowest C.")
    ] = "robust",
    trials: Annotated[
        int,
        typer.Option(
            min=1, help="Trials in all, those of earlier calls and other processes included."
        ),
    ] = 20,
    shapes: Annotated[str, typer.Option(help="Comma-separated.")] = "linear,exponential,piecewise",
    prune: Annotated[
        bool, typer.Option(help="End bad schedules early; not where C decides.")
    ] = True,
    gamma: Annotated[float, typer.Option(help="The price of a step in C.")] = 0.04,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    json_: Json = False,
) -> None:
    """Find a schedule under a budget; prints the winning recipe as TOML."""
    if (budget is None) == (grad_evals is None):
        raise InputError("give --budget SHARE or --grad-evals N, one of the two")
    if budget is not None and not budget > 0:
        raise InputError(
            f"--budget {budget:g} must be a share above 0 of PGD-K's cost, as in --budget 0.6"
        )
    from amata import recipes
    from amata.console import ConsoleReporter, err, search_table
    from amata.report.figures import search_figure
    from amata.studies.cost import MethodCost, reference_cost
    from amata.studies.search import Search, SearchSettings
    from amata.training.experiment import load_data

    loaded = recipes.load(recipe, set_)
    splits = load_data(loaded)
    reference, k_cap = reference_cost(loaded, MethodCost.of(loaded, splits), reference_steps)
    images = len(splits.train)
    per_image = (
        budget * reference
        if budget is not None
        else (grad_evals or 0) / (images * loaded.train.epochs)
    )
    settings = SearchSettings(
        budget=per_image,
        objective=objective,  # type: ignore[arg-type]
        k_cap=k_cap,
        shapes=tuple(s.strip() for s in shapes.split(",")),
        trials=trials,
        prune=prune,
        seed=seed,
        gamma=gamma,
    )
    make_folder(out)
    with ConsoleReporter() as reporter:
        result = Search(loaded, settings, out, reporter, splits).run()
    if result is None:
        return
    result["reference_cost"] = reference
    search_figure(result, out / "pareto")
    if json_:
        print(json.dumps(result, indent=2))
    else:
        err.print(search_table(result))
        err.print(
            f"written {out / 'best.toml'}, {out / 'search.json'}, {out / 'pareto.svg'}",
            soft_wrap=True,
        )
        print(result["toml"], end="")


@app.command(epilog="Example: amata toy --theta0 1 --tau 3 --out runs/toy")
def toy(
    theta0: Annotated[float, typer.Option(help="Where training begins.")] = 1.0,
    tau: Annotated[float, typer.Option(help="K alpha; above 1 + theta0^2.")] = 3.0,
    horizon: Annotated[float, typer.Option(help="The length of training.")] = 2.0,
    gamma: Annotated[float, typer.Option(help="The price of a step.")] = 0.04,
    parts: Annotated[int, typer.Option(min=2, help="Steps of time.")] = 100,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Solve the paper's toy problem three ways: closed form, Pontryagin's principle, greedily."""
    from amata.console import out as console
    from amata.control.toy import Toy
    from amata.report.figures import toy_figure

    result = Toy(theta0=theta0, tau=tau, horizon=horizon, gamma=gamma, parts=parts).report()
    _write(result, out, "toy", toy_figure)
    if json_:
        print(json.dumps(result, indent=2))
        return
    worst = max(
        abs(a / b - 1) for a, b in zip(result["k_msa"], result["k_closed_form"], strict=True)
    )
    console.print(
        f"K*(t) from {result['k_closed_form'][0]:.3f} to {result['k_closed_form'][-1]:.3f}; "
        f"found by MSA to {worst:.1e}"
    )
    console.print("schedule   C over the whole interval")
    for name in ("optimal", "msa", "linear", "constant"):
        console.print(f"{name:10} {result[f'c_{name}']:.3g}")


@app.command(epilog="Example: amata convergence --out runs/convergence")
def convergence(
    repeats: Annotated[
        int, typer.Option(min=1, help="Independent runs that each expectation is taken over.")
    ] = 64,
    out: Out = None,
    json_: Json = False,
) -> None:
    """Measure Amata's gradient on a problem with known constants, against the bound of the paper's
    Theorem 1."""
    from amata.console import out as console
    from amata.control.convergence import study
    from amata.report.figures import convergence_figure

    result = study(repeats=repeats)
    _write(result, out, "convergence", convergence_figure)
    if json_:
        print(json.dumps(result, indent=2))
        return
    console.print(f"{'schedule':14} {'T':>6} {'delta':>7} {'mean |grad L|^2':>16} {'bound':>8}")
    for row in [*result["over_steps"], *result["over_delta"]]:
        console.print(
            f"{row['schedule']:14} {row['steps']:6d} {row['delta']:7.3f} "
            f"{row['squares']:16.4f} {row['printed']:8.3f}"
        )


def _write(result: dict[str, Any], out: Path | None, name: str, draw: Any) -> None:
    if out is not None:
        make_folder(out)
        draw(result, out / name)
        (out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
