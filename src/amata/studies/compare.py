"""Compare finished runs from their folders: time, cost, accuracies with intervals, and the recipe
keys that differ."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from amata.attacks import Attack, parse_attack
from amata.errors import quoted
from amata.evaluation import LEARNT_NOTHING, grouped_warnings
from amata.metrics import EpochRow
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.runs.evaluations import read_outcomes
from amata.runs.files import read_record
from amata.studies.comparison_rows import common_target, recipe_rows
from amata.studies.criterion_record import MEASURED
from amata.studies.differences import (
    check_same_data,
    comparability_warnings,
    recipe_differences,
    same_test_images,
)
from amata.studies.plan import check_target
from amata.studies.shared_attack import Flags, compare_under_one_attack
from amata.studies.timing import slowed_runs, timing_facts, training_times
from amata.studies.titles import recipe_titles
from amata.training.evaluations import all_results


def compare_runs(
    runs: Sequence[RunFolder],
    target: float | None = None,
    criterion: Path | None = None,
    *,
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The contents of a report as plain data: a row per recipe, a curve per run, the differences
    between the recipes, and the environment.

    The first recipe is the baseline. Where a run has no test evaluation, the rows hold held-out
    accuracies as well.
    """
    check_target(target)
    opened = [(run, RunFolder.open(run.path)[1]) for run in runs]
    check_same_data(opened)
    titles = recipe_titles(opened)
    curves = [
        _curve(run, recipe, title) for (run, recipe), title in zip(opened, titles, strict=True)
    ]
    trained, overlap = training_times(runs)
    slowed = [] if overlap else slowed_runs(opened)
    warnings = [*failures, *comparability_warnings(opened), *overlap, *slowed]
    source = "given"
    if target is None:
        target, problem = common_target(curves)
        source = "the highest whole percentage that every run reached"
        warnings += [problem] if problem else []
    summaries = [
        {**(summary := run.summary()), "evaluation": all_results(run, recipe, summary)}
        for run, recipe in opened
    ]
    environments = [env for run in runs for env in run.environments()]
    comparable = not (overlap or slowed) and all(
        timing_facts(env) == timing_facts(environments[0]) for env in environments
    )
    rows, untested = recipe_rows(titles, curves, summaries, target)
    for row in rows:
        row["times_comparable"] = comparable
        if not comparable:
            row["speedup"] = row["speedup_to_target"] = None
    warnings += untested
    same_images = same_test_images(opened)
    shared, not_compared = compare_under_one_attack(
        rows, same_images=same_images, outcomes=partial(_outcomes, opened, titles, summaries)
    )
    for row in rows:
        found = {attack: a["warnings"] for attack, a in row["accuracies"].items()}
        warnings += [f"{row['recipe']}, {text}" for text in grouped_warnings(found)]
    failed = [row for row in rows if _learnt_nothing(row)]
    for row in rows if rows[0] in failed else failed:  # the first one is the baseline
        row["speedup"] = row["speedup_to_target"] = None
    accuracies = {name: a for row in rows for name, a in row["accuracies"].items()}
    first = opened[0][1]
    return {
        "target": target,
        "target_source": source,
        "valid_attack": first.train.valid_attack,
        "valid_n": curves[0]["valid_n"],
        "order": [run.path.name for run in runs],
        "trained": trained,
        "times_comparable": comparable,
        "attacks": sorted(accuracies, key=lambda name: accuracies[name]["split"] != "test"),
        "images": sorted(
            {a["n"] for row in rows for a in row["accuracies"].values() if a["split"] == "test"}
        ),
        "rows": rows,
        "shared": shared,
        "not_compared": not_compared,
        "same_test_images": same_images,
        "curves": curves,
        "criterion": _read_criterion(criterion),
        "differences": recipe_differences(
            {title: recipe for (_, recipe), title in zip(opened, titles, strict=True)}
        ),
        "threats": _distinct(recipe.tables["threat"] for _, recipe in opened),
        "data": _distinct(_data(recipe) for _, recipe in opened),
        "environment": environments[0],
        "other_environments": _distinct(environments)[1:],
        "warnings": warnings,
    }


def _outcomes(
    opened: Sequence[tuple[RunFolder, Recipe]],
    titles: Sequence[str],
    summaries: Sequence[dict[str, Any]],
    title: str,
    attack: str,
) -> dict[int, Flags] | None:
    """By seed, which images the recipe of this title got right; None if a run did not store it."""
    found: dict[int, Flags] = {}
    for (run, recipe), own, summary in zip(opened, titles, summaries, strict=True):
        if own == title:
            right = read_outcomes(summary["evaluation"].get(attack, {}), attack, run.path)
            if right is None:
                return None
            found[recipe.train.seed] = right
    return found


def _learnt_nothing(row: dict[str, Any]) -> bool:
    """Whether a model of this recipe is worth no time."""
    return any(LEARNT_NOTHING in a["warnings"] for a in row["accuracies"].values())


def _data(recipe: Recipe) -> str:
    """The name of its data set; of own images, the folder too."""
    name, root = recipe.data.name, recipe.data.root
    return f"{name} {Path(root).name}" if name in ("folder", "parquet") and root else name


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order."""
    found: list[Any] = []
    for value in values:
        found += [value] if value not in found else []
    return found


def _read_criterion(file: Path | None) -> list[dict[str, Any]]:
    if file is None or not file.is_file():
        return []
    hint = f"delete it, or repeat `amata criterion` in {quoted(file.parent)}"
    return [
        {"run": m["strategy"], "c": m["c"], "c_stderr": m["c_stderr"], "epochs": m["epochs"]}
        for m in read_record(file, MEASURED, hint=hint)["strategies"]
    ]


def _curve(run: RunFolder, recipe: Recipe, title: str) -> dict[str, Any]:
    """One run epoch by epoch; a rolled-back epoch is an event, not a point."""
    epochs = run.epochs()
    sizes = [row.get("valid_n", recipe.data.valid) for row in epochs if "valid" in row]
    keys = ("epoch", "steps", "step_size", "loss", "lr", "train_seconds", "grad_evals")
    return {
        "run": run.path.name,
        "recipe": title,
        "seed": recipe.train.seed,
        "points": [
            {**{k: v for k, v in row.items() if k in keys}, **_validation(row)} for row in epochs
        ],
        "events": run.events(),
        "valid_attack": recipe.train.valid_attack,
        "valid_params": _attack(recipe).params(recipe.ball),
        "valid_n": max(sizes, default=0),
    }


def _attack(recipe: Recipe) -> Attack:
    """The attack of the validation."""
    c = recipe.eval
    return parse_attack(recipe.train.valid_attack, step_size=c.step_size, c=c.cw_c)


def _validation(row: EpochRow) -> dict[str, float | None]:
    """Held-out accuracies of an epoch, without and with the attack."""
    valid = row.get("valid", {})
    clean = valid.get("clean")
    return {
        "clean": clean,
        "robust": next((a for name, a in valid.items() if name != "clean"), clean),
    }
