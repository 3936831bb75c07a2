"""amata search: looks for a schedule of a given cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import Jobs, Json, Set, app, complete_recipe, make_folder
from amata.errors import InputError, check_installed


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
