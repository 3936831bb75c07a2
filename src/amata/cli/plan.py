"""amata plan."""

import json
from typing import Annotated

import typer

from amata.cli.root import (
    Engine,
    Eps,
    Json,
    Limit,
    Precision,
    Seed,
    Set,
    app,
    complete_recipe,
    short_forms,
)


@app.command(epilog="Example: amata plan mnist5k-amata --within 90s")
def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A built-in recipe, a TOML file, or module:name of a Recipe in Python.",
            autocompletion=complete_recipe,
        ),
    ],
    within: Annotated[str, typer.Option(metavar="TIME", help="The time, as in 30s, 5m or 1h30m.")],
    set_: Set = [],  # noqa: B006
    eps: Eps = None,
    seed: Seed = None,
    limit: Limit = None,
    engine: Engine = None,
    precision: Precision = None,
    json_: Json = False,
) -> None:
    """Say what `amata train --within` would do in a given time on this device: epochs, schedule,
    seconds and, where it is known, robust accuracy. A few batches are timed; nothing is written."""
    set_ = [
        *set_,
        *short_forms(
            threat_eps=eps,
            train_seed=seed,
            data_limit=limit,
            train_engine=engine,
            train_precision=precision,
        ),
    ]
    from amata import recipes
    from amata.console import ConsoleReporter, out
    from amata.training.experiment import plan as plan_recipe
    from amata.training.wall import WallClock, process_age
    from amata.training.within import as_record, in_lines, read_within

    wall = WallClock(process_age())
    time = read_within(within, recipes.as_pairs(set_))
    assert time is not None
    with ConsoleReporter() as reporter:
        planned = plan_recipe(recipes.load(recipe, set_), time, reporter, wall=wall)
    if json_:
        record = as_record(planned.plan)
        record["seconds"]["evaluation"] = planned.evaluation
        print(json.dumps({**record, "wall_seconds": planned.wall}, indent=2))
        return
    for line in in_lines(planned.plan, planned.evaluation):
        out.say(line)
