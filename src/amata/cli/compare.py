"""amata compare and amata report."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.app import Json, Set, app

Target = Annotated[float | None, typer.Option(help="Held-out robust accuracy to race to; by default the highest all runs reached.")]


@app.command(epilog="Example: amata compare mnist5k-pgd mnist5k-amata --seeds 3 --out runs/compare")
def compare(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="The first is what the others are held against.")],
    out: Annotated[Path, typer.Option(help="A folder for runs and report; the same one goes on with them.")],
    target: Target = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, from its seed on.")] = 1,
    set_: Set = [],  # noqa: B006
    json_: Json = False,
) -> None:
    """Train recipes side by side, evaluate them alike, and write a report."""
    from amata.console import ConsoleReporter
    from amata.studies.compare import describe, make_runs, plan

    planned = plan(recipes, set_, seeds)
    with ConsoleReporter() as reporter:
        runs = make_runs(planned, out, reporter)
    _report(describe(runs, target, out / "criterion.json"), out, json_)


@app.command(epilog="Example: amata report runs/compare --out runs/again")
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of comparisons.")],
    out: Annotated[Path, typer.Option(help="A folder for the report.")],
    target: Target = None,
    json_: Json = False,
) -> None:
    """Make the report of finished runs, from their folders alone."""
    from amata.studies.compare import describe, found_runs

    _report(describe(found_runs(folders), target, folders[0] / "criterion.json"), out, json_)


def _report(result: dict[str, Any], out: Path, json_: bool) -> None:
    from amata.console import comparison_table
    from amata.console import out as console
    from amata.report.comparison import comparison_pictures
    from amata.report.page import as_csv, as_markdown, difference_table, page, result_table
    from amata.training.files import write_atomic, write_json

    out.mkdir(parents=True, exist_ok=True)
    names = [row["recipe"] for row in result["rows"]]
    pictures = comparison_pictures(result, out / "figures")
    write_json(out / "compare.json", result)
    for name, table in (("results", result_table(result)), ("differences", difference_table(result))):
        write_atomic(out / f"{name}.csv", as_csv(table).encode())
        write_atomic(out / f"{name}.md", as_markdown(table).encode())
    write_atomic(
        out / "report.html", page(result, pictures, " against ".join(names) if len(names) < 3 else f"{len(names)} recipes").encode()
    )
    if json_:
        print(json.dumps(result, indent=2))
    else:
        console.print(comparison_table(result))
        console.print(f"report {out / 'report.html'}", soft_wrap=True)
