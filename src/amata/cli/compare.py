"""amata compare and amata report."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amata.cli.root import (
    Epochs,
    Jobs,
    Json,
    Limit,
    Log,
    Set,
    app,
    check_attacks,
    check_installed,
    complete_recipe,
    make_folder,
    reporters,
    short_forms,
)
from amata.errors import InputError

if TYPE_CHECKING:
    from amata.studies.compare_images import ComparedImages

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
    from amata.studies.compare import compare_runs
    from amata.studies.compare_images import compare_images
    from amata.studies.plan import plan, run_plan

    _check_folder(out)
    set_ = [*set_, *short_forms(data_limit=limit)]
    if jobs > 1 and log:
        raise InputError(f"--log {log[0]} follows one run at a time; drop it or --jobs")
    # A bar is for one run; several get lines.
    reporter = reporters(log)
    with reporter if jobs == 1 else nullcontext():
        planned = plan(recipes, set_, seeds, reporter.note, epochs)
        check_attacks(attack for recipe in planned for attack in recipe.eval.attacks)
        runs, failures = run_plan(planned, out, reporter, target, jobs)
        result = compare_runs(runs, target, out / "criterion.json", failures=failures)
        titles = [curve["recipe"] for curve in result["curves"]]
        images = compare_images(runs, titles, reporter.note)
    _report(result, out, json_, images)


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
    from amata.studies.plan import check_same_runs, find_runs

    _check_folder(out)
    runs, planned = find_runs(folders)
    check_same_runs(out, [run.path.name for run in runs])
    _report(
        compare_runs(runs, planned if target is None else target, folders[0] / "criterion.json"),
        out,
        json_,
    )


TABLES = ("results", "differences", "environment")


def _check_folder(out: Path) -> None:
    """Fail before the training, not after it. A report replaces only an earlier report."""
    from amata.runs.files import refuse_links

    refuse_links(out / "figures")
    check_installed("matplotlib", "a report", "plots")
    ours = (out / "plan.json").is_file() or (out / "compare.json").is_file()
    files = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "md")]
    make_folder(out, *([] if ours else ["report.html", "figures", *files]))


def _report(
    result: dict[str, Any], out: Path, json_: bool, images: "ComparedImages | None" = None
) -> None:
    from amata.console import comparison_table
    from amata.console import out as console
    from amata.report.comparison import comparison_figures
    from amata.report.gallery import image_rows
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
    tables = (result_table(result), difference_table(result), environment_table(result))
    for name, table in zip(TABLES, tables, strict=True):
        write_atomic(
            out / f"{name}.csv",
            (result_csv(result) if name == "results" else as_csv(table)).encode(),
        )
        write_atomic(out / f"{name}.md", as_markdown(table).encode())
    names = [row["recipe"] for row in result["rows"]]
    gallery = ""
    if images is not None:
        gallery = image_rows(images.attack, images.x, images.labels, images.rows)
    title = " vs ".join(names) if len(names) < 3 else f"{len(names)} recipes"
    write_atomic(
        out / "report.html",
        page(result, comparison_figures(result, out / "figures"), title, gallery).encode(),
    )
    if json_:
        print(json.dumps(result, indent=2))
        return
    console.print(comparison_table(result))
    for warning in result["warnings"]:
        console.say(f"note: {warning}")
    console.print(f"report {out / 'report.html'}", soft_wrap=True)
