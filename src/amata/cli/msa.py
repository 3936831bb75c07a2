"""amata msa: schedules by the method of successive approximations."""

import json
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import Json, Set, app, check_attacks, complete_recipe, make_folder


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
