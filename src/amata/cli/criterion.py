"""amata criterion: how far trainings are from the best controls, by the criterion C."""

import json
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import (
    Json,
    Set,
    Trust,
    app,
    check_attacks,
    complete_recipe,
    make_folder,
)
from amata.errors import check_installed


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
