"""amata compare and amata report."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.cli.root import (
    CREATED,
    Epochs,
    Jobs,
    Json,
    Limit,
    Log,
    Set,
    app,
    check_attacks,
    complete_recipe,
    reporters,
    short_forms,
)
from amata.errors import InputError

Target = Annotated[
    float | None,
    typer.Option(
        help="Target held-out robust accuracy; default: the highest that all runs reached."
    ),
]


@app.command(epilog="Example: amata compare mnist5k-pgd mnist5k-amata --seeds 3 --out runs/compare")
def compare(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE...", help="The first is the baseline.", autocompletion=complete_recipe
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="A folder for runs and report; repeat the command to resume.")
    ],
    target: Target = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, max=1000, metavar="N", help="Runs per recipe, from its seed upwards."),
    ] = 1,
    set_: Set = [],  # noqa: B006
    epochs: Epochs = None,
    limit: Limit = None,
    jobs: Jobs = 1,
    log: Log = [],  # noqa: B006
    json_: Json = False,
) -> None:
    """Train recipes under the same conditions, evaluate them, and write a report.

    The report includes C if `amata criterion` wrote into the same folder.
    """
    from amata.studies.comparison import run_comparison
    from amata.studies.plan import plan

    _make_report_folder(out)
    set_ = [*set_, *short_forms(data_limit=limit)]
    if jobs > 1 and log:
        raise InputError(f"--log {log[0]} follows one run at a time; drop it or --jobs")
    # A bar is for one run; several get lines.
    reporter = reporters(log)
    with reporter if jobs == 1 else nullcontext():
        planned = plan(recipes, set_, seeds, reporter.note, epochs)
        check_attacks(attack for recipe in planned for attack in recipe.eval.attacks)
        compared = run_comparison(planned, out, reporter, target, jobs)
        if len(set(recipes)) == 1:
            reporter.note("one recipe: its runs are reported, and compared with nothing")
    _show(compared.result, out, json_)


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
    """Write the report of finished runs; their small files suffice. The first recipe is the
    baseline."""
    from amata.studies.compare import compare_runs
    from amata.studies.comparison import write_report
    from amata.studies.plan import check_same_runs, find_runs

    _make_report_folder(out)
    runs, planned = find_runs(folders)
    check_same_runs(out, [run.path.name for run in runs])
    result = compare_runs(
        runs, planned if target is None else target, folders[0] / "criterion.json"
    )
    write_report(result, out)
    _show(result, out, json_)


def _make_report_folder(out: Path) -> None:
    from amata.studies.comparison import report_folder

    CREATED.extend(report_folder(out))


def _show(result: dict[str, Any], out: Path, json_: bool) -> None:
    from amata.console import comparison_table
    from amata.console import out as console
    from amata.report.lead import gap_lines

    if json_:
        print(json.dumps(result, indent=2))
        return
    console.print(comparison_table(result))
    for line in gap_lines(result):
        console.say(line)
    for warning in result["warnings"]:
        console.say(f"note: {warning}")
    console.print(f"report {out / 'report.html'}", soft_wrap=True)
