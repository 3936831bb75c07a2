"""amata criterion, search, msa, toy and convergence: training as a control problem."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import (
    Jobs,
    Json,
    Set,
    Trust,
    app,
    check_attacks,
    check_installed,
    complete_recipe,
    make_folder,
)
from amata.errors import InputError

Out = Annotated[
    Path | None, typer.Option(help="A folder for figures and JSON; default: write none.")
]


@app.command(
    epilog="Example: amata criterion mnist5k-pgd mnist5k-pgd2 mnist5k-amata --out runs/criterion"
)
def criterion(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|RECIPE...",
            help="Run folders with saved epochs, or recipes to train.",
            autocompletion=complete_recipe,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="A folder for runs and results; repeat the command to resume."),
    ],
    set_: Set = [],  # noqa: B006
    gamma: Annotated[
        list[float],
        typer.Option(
            help="The weight of the running cost. Repeat it for a sweep; C is that of the first."
        ),
    ] = [0.04, 0.0, 0.01, 0.16],  # noqa: B006
    cost: Annotated[
        str, typer.Option(help="The running cost: steps (as in the paper), gradients or seconds.")
    ] = "steps",
    z: Annotated[
        str | None,
        typer.Option(
            metavar="K,ALPHA",
            help="Take the inner product with the gradient under this fixed attack.",
        ),
    ] = None,
    batches: Annotated[
        int, typer.Option(min=1, max=10_000, help="Batches on which C is measured.")
    ] = 4,
    k_max: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="The largest K that is tried; default: the strategies' largest."
        ),
    ] = None,
    alphas: Annotated[int, typer.Option(min=1, max=1000, help="Step sizes per K.")] = 6,
    search: Annotated[
        str, typer.Option(help="How step sizes are proposed: grid, tpe or gp.")
    ] = "grid",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Measure the optimal-control criterion C of strategies, with robustness, time and cost: the
    paper's Table 1."""
    from amata.console import ConsoleReporter, criterion_table, sweep_table
    from amata.console import out as console
    from amata.report.control import criterion_figure
    from amata.studies.criterion import (
        CriterionSettings,
        check_strategies,
        measure_strategies,
        parse_z,
        plan_strategies,
        strategies,
    )

    settings = CriterionSettings(
        gammas=tuple(gamma),
        cost=cost,
        z=parse_z(z) if z else None,
        batches=batches,
        k_max=k_max,
        alphas=alphas,
        search=search,
        seed=seed,
    )
    check_installed("matplotlib", "drawing criterion.svg", "plots")
    if search != "grid":
        check_installed("optuna", f"--search {search}", "search")
    planned = plan_strategies(targets, set_, trust=trust)
    check_attacks(a for _, recipe in planned if recipe for a in recipe.eval.attacks)
    make_folder(out)
    check_strategies(planned, settings, out)
    with ConsoleReporter() as reporter:
        runs = strategies(planned, out, reporter)
        rows = measure_strategies(runs, settings, out, reporter, trust=trust)
    criterion_figure(rows, out / "criterion")
    if json_:
        # without the grids, which are in the file
        brief = [
            {**r, "epochs": [{k: v for k, v in e.items() if k != "tried"} for e in r["epochs"]]}
            for r in rows
        ]
        print(json.dumps({"gammas": settings.gammas, "strategies": brief}, indent=2))
    else:
        console.print(criterion_table(rows))
        console.print()
        console.print(sweep_table(rows))
        console.print(f"written {out / 'criterion.json'}, {out / 'criterion.svg'}", soft_wrap=True)


@app.command(
    epilog="Example: amata search mnist5k-amata --budget 0.6 --trials 20 --out runs/search"
)
def search(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A built-in recipe, or a TOML file; its schedule is replaced.",
            autocompletion=complete_recipe,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The study's folder; repeat the command to resume. Processes can share it."
        ),
    ],
    set_: Set = [],  # noqa: B006
    budget: Annotated[
        float | None,
        typer.Option(help="Budget as a fraction of the cost of PGD-K: K + 1 per image and epoch."),
    ] = None,
    grad_evals: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**18, help="The budget in gradient evaluations of the whole run."
        ),
    ] = None,
    reference_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="K of the PGD-K in --budget; default: the schedule's largest.",
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="robust: highest held-out robust accuracy. criterion: lowest C.")
    ] = "robust",
    trials: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Total trials, including earlier calls and other processes."
        ),
    ] = 20,
    shapes: Annotated[
        str, typer.Option(help="Comma-separated schedule shapes.")
    ] = "linear,exponential,piecewise",
    prune: Annotated[
        bool, typer.Option(help="Prune bad schedules early; only for the robust objective.")
    ] = True,
    gamma: Annotated[float, typer.Option(help="The weight of a step in C.")] = 0.04,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    jobs: Jobs = 1,
    json_: Json = False,
) -> None:
    """Search for a schedule under a budget; prints the best recipe as TOML."""
    if (budget is None) == (grad_evals is None):
        raise InputError("pass either --budget SHARE or --grad-evals N")
    if budget is not None and not budget > 0:
        raise InputError(
            f"--budget {budget:g} must be a positive fraction of PGD-K's cost, as in --budget 0.6"
        )
    from amata import recipes
    from amata.console import ConsoleReporter, err, search_table
    from amata.report.figures import search_figure
    from amata.studies.cost import reference_cost
    from amata.studies.jobs import check_jobs, share_search
    from amata.studies.search import WRITTEN, Search, SearchSettings
    from amata.training.setup import load_data

    check_installed("matplotlib", "drawing pareto.svg", "plots")
    make_folder(out, *([] if (out / "study.db").is_file() else WRITTEN))
    loaded = recipes.load(recipe, set_)
    splits = load_data(loaded)
    reference, k_cap = reference_cost(loaded, reference_steps)
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
    reporter = ConsoleReporter()
    study = Search(loaded, settings, out, reporter, splits)
    if jobs > 1:
        variables = check_jobs(min(jobs, trials), [loaded])
        share_search(loaded, asdict(settings), out, variables, reporter)
        result: dict[str, Any] | None = study.summary()
    else:
        with reporter:
            result = study.run()
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


@app.command(epilog="Example: amata msa mnist5k-amata --iterations 3 --out runs/msa")
def msa(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A built-in recipe, or a TOML file; its schedule is the first that is trained.",
            autocompletion=complete_recipe,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The study's folder; repeat the command to resume.")],
    set_: Set = [],  # noqa: B006
    iterations: Annotated[
        int, typer.Option(min=1, max=1000, help="Trainings after the first.")
    ] = 3,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Gradient evaluations per image and epoch; default: those of the schedule."
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            help="Instead of a budget: the held-out loss that a gradient evaluation per image is "
            "worth."
        ),
    ] = None,
    k_max: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="The largest K; default: the schedule's largest."),
    ] = None,
    block: Annotated[int, typer.Option(min=1, help="Epochs that share a control.")] = 1,
    batches: Annotated[
        int, typer.Option(min=1, max=10_000, help="Batches per epoch on which H is measured.")
    ] = 4,
    order: Annotated[
        int, typer.Option(min=1, max=1000, help="Hessian products per epoch and probe batch.")
    ] = 8,
    json_: Json = False,
) -> None:
    """Improve a schedule by successive approximations: train, carry the co-state back, choose K
    again; prints the best recipe as TOML."""
    from amata import recipes
    from amata.console import ConsoleReporter, err, msa_table
    from amata.studies.msa import Msa, MsaSettings

    settings = MsaSettings(
        budget=budget, gamma=gamma, k_max=k_max, block=block, batches=batches, order=order
    )
    loaded = recipes.load(recipe, set_)
    check_attacks(loaded.eval.attacks)
    make_folder(out)
    with ConsoleReporter() as reporter:
        result = Msa(loaded, settings, out, reporter).run(iterations)
    if json_:
        print(json.dumps(result, indent=2))
    else:
        err.print(msa_table(result))
        err.print(f"written {out / 'best.toml'}, {out / 'msa.json'}", soft_wrap=True)
        print(result["toml"], end="")


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
