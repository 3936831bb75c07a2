"""amata.compare: train recipes under the same conditions, and write a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amata.errors import InputError, check_installed, printable
from amata.quantity import number, whole
from amata.recipes import Recipe, load
from amata.report.lead import gap_lines
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import make_output, refuse_links, remove_empty, write_atomic, write_json
from amata.studies.compare import compare_runs
from amata.studies.compare_images import ComparedImages, compare_images
from amata.studies.plan import plan, run_name, run_plan

MOST_SEEDS = 1_000
TABLES = ("results", "differences", "environment")
"""The tables of a report, each as CSV and Markdown."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Trained recipes side by side. `print` shows a table; the report is in the folder `path`."""

    path: Path
    runs: tuple[RunFolder, ...]
    result: dict[str, Any]
    """What compare.json holds, as plain data."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per recipe: accuracies with intervals, seconds, gradient evaluations and more."""
        return list(self.result["rows"])

    @property
    def warnings(self) -> list[str]:
        return list(self.result["warnings"])

    def __str__(self) -> str:
        from amata.console import comparison_table, out  # imports rich; `import amata` does not

        table = [line.plain for line in comparison_table(self.result).lines(out.width)]
        told = [*gap_lines(self.result), *(f"note: {text}" for text in self.warnings)]
        return "\n".join([*table, *map(printable, told)])


def compare(
    recipes: Iterable[Recipe | str | Path | Mapping[str, Any]],
    out: str | Path,
    *,
    seeds: int = 1,
    epochs: int | None = None,
    target: float | None = None,
    progress: bool | Reporter | Sequence[bool | Reporter] = True,
    **tables: Any,
) -> Comparison:
    """Train and compare as `amata compare` does: `compare(["mnist5k-pgd", mine], "runs/compare")`.

    The first recipe is the baseline, and all take its data, threat, validation and tests. Each is
    the name of a built-in recipe, a TOML file, a dict of tables or a `Recipe`, whose method and
    schedule may be yours. `seeds` is the number of runs per recipe, from its seed upwards; `epochs`
    stretches all recipes, and keyword arguments change keys of their tables, as in
    `data={"limit": 2000}`. Repeat the call to resume. `target` is a held-out robust accuracy, to
    which times are compared.
    """
    from amata.console import reporting

    if isinstance(recipes, str | bytes | Mapping) or not isinstance(recipes, Iterable):
        raise InputError("compare(): pass a list of recipes, the baseline first")
    given = list(recipes)
    if not given:
        raise InputError("compare(): the list of recipes is empty")
    if not isinstance(out, str | Path) or not str(out):
        raise InputError(f"compare(): out = {out!r} must be a folder")
    if target is not None:
        target = number(target, "target")
    seeds = whole(seeds, "seeds", 1, MOST_SEEDS)
    loaded = [load(recipe, epochs=epochs, **tables) for recipe in given]
    folder = Path(out).expanduser()
    with reporting(progress, "compare()") as reporter:
        planned = plan(loaded, (), seeds, reporter.note)
        created = report_folder(folder)
        try:
            return run_comparison(planned, folder, reporter, target)
        finally:
            remove_empty(created)


def run_comparison(
    planned: Sequence[Recipe],
    out: Path,
    reporter: Reporter,
    target: float | None = None,
    jobs: int = 1,
) -> Comparison:
    """Train what is planned, compare it and write the report."""
    runs, failures = run_plan(planned, out, reporter, target, jobs)
    first = planned[0].name
    if not {run.path.name for run in runs} & {run_name(r) for r in planned if r.name == first}:
        failures.append(f"{first} failed, so another recipe is the baseline")
    result = compare_runs(runs, target, out / "criterion.json", failures=failures)
    titles = [curve["recipe"] for curve in result["curves"]]
    write_report(result, out, compare_images(runs, titles, reporter.note))
    return Comparison(out, tuple(runs), result)


def report_folder(out: Path) -> list[Path]:
    """Fail before the training, not after it. A report replaces only an earlier report. Returns the
    folders that were created."""
    refuse_links(out / "figures")
    check_installed("matplotlib", "a report", "plots")
    ours = (out / "plan.json").is_file() or (out / "compare.json").is_file()
    files = [f"{name}.{kind}" for name in TABLES for kind in ("csv", "md")]
    return make_output(out, *([] if ours else ["report.html", "figures", *files]))


def write_report(result: dict[str, Any], out: Path, images: ComparedImages | None = None) -> None:
    """compare.json, the tables, the figures and the page."""
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

    write_json(out / "compare.json", result)
    tables = (result_table(result), difference_table(result), environment_table(result))
    for name, table in zip(TABLES, tables, strict=True):
        text = result_csv(result) if name == "results" else as_csv(table)
        write_atomic(out / f"{name}.csv", text.encode())
        write_atomic(out / f"{name}.md", as_markdown(table).encode())
    names = [row["recipe"] for row in result["rows"]]
    gallery = ""
    if images is not None:
        gallery = image_rows(images.attack, images.x, images.labels, images.rows)
    title = " vs ".join(names) if len(names) < 3 else f"{len(names)} recipes"
    figures = comparison_figures(result, out / "figures")
    write_atomic(out / "report.html", page(result, figures, title, gallery).encode())
