"""amata compare and amata report."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import Json, Set, app, make_folder
from amata.errors import missing

Target = Annotated[
    float | None,
    typer.Option(
        help="Held-out robust accuracy to race to; by default the highest that all runs reached."
    ),
]


@app.command(epilog="Example: amata compare mnist5k-pgd mnist5k-amata --seeds 3 --out runs/compare")
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE...", help="The first is what the others are held against."),
    ],
    out: Annotated[
        Path, typer.Option(help="A folder for runs and report; the same one goes on with them.")
    ],
    target: Target = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, from its seed on.")] = 1,
    set_: Set = [],  # noqa: B006
    json_: Json = False,
) -> None:
    """Train recipes side by side, evaluate them alike, and write a report.

    C is in it where `amata criterion` wrote into the same folder.
    """
    from amata.console import ConsoleReporter
    from amata.studies.compare import describe
    from amata.studies.plan import make_runs, plan

    make_folder(out)
    _check_drawing()
    with ConsoleReporter() as reporter:
        planned = plan(recipes, set_, seeds, reporter.note)
        runs, failures = make_runs(planned, out, reporter, target)
    _report(
        describe(runs, target, out / "criterion.json", together=True, failures=failures), out, json_
    )


@app.command(epilog="Example: amata report runs/compare --out runs/again")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, comparisons, or folders of runs."),
    ],
    out: Annotated[Path, typer.Option(help="A folder for the report.")],
    target: Target = None,
    json_: Json = False,
) -> None:
    """Make the report of finished runs, from their folders alone. The first recipe is what the
    others are held against."""
    from amata.studies.compare import describe
    from amata.studies.plan import found_runs

    make_folder(out)
    _check_drawing()
    runs, planned = found_runs(folders)
    together = len(folders) == 1 and (folders[0] / "plan.json").is_file()
    _report(
        describe(runs, target or planned, folders[0] / "criterion.json", together=together),
        out,
        json_,
    )


def _check_drawing() -> None:
    """Find out before hours of training, not after."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise missing("matplotlib", "a report", "plots")


def _report(result: dict[str, Any], out: Path, json_: bool) -> None:
    from amata.console import comparison_table
    from amata.console import out as console
    from amata.report.comparison import comparison_pictures
    from amata.report.page import page
    from amata.report.tables import (
        as_csv,
        as_markdown,
        difference_table,
        environment_table,
        result_csv,
        result_table,
    )
    from amata.runs.files import write_atomic, write_json

    write_json(out / "compare.json", result)
    tables = {
        "results": result_table(result),
        "differences": difference_table(result),
        "environment": environment_table(result),
    }
    for name, table in tables.items():
        write_atomic(
            out / f"{name}.csv",
            (result_csv(result) if name == "results" else as_csv(table)).encode(),
        )
        write_atomic(out / f"{name}.md", as_markdown(table).encode())
    names = [row["recipe"] for row in result["rows"]]
    title = " against ".join(names) if len(names) < 3 else f"{len(names)} recipes"
    write_atomic(
        out / "report.html",
        page(result, comparison_pictures(result, out / "figures"), title).encode(),
    )
    if json_:
        print(json.dumps(result, indent=2))
        return
    console.print(comparison_table(result))
    for warning in result["warnings"]:
        console.print(f"note: {warning}", soft_wrap=True, markup=False)
    console.print(f"report {out / 'report.html'}", soft_wrap=True, markup=False)
