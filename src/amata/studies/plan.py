"""The runs of a comparison: plan them, train them one after the other or several at once, find them
again.

All recipes use the first one's data, threat, evaluation and validation. An interrupted comparison
resumes where it stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amata import recipes
from amata.data import shared_data
from amata.engine.worth import code_for
from amata.errors import AmataError, InputError, shorten
from amata.recipes import Recipe
from amata.recipes.overrides import Overrides
from amata.recipes.recorded import rebuilt, refuse_placeholders
from amata.recipes.schema import PythonData
from amata.reporter import Reporter, run_infos
from amata.runs import RunFolder
from amata.runs.files import read_json, read_record, write_record
from amata.runs.lock import hold
from amata.studies.jobs import check_jobs, train_runs
from amata.studies.runs import check_runs, planned_cost, train_or_resume
from amata.training import Interrupted

SHARED = (
    "data.valid",
    "data.test_share",
    "data.resize",
    "data.crop",
    "train.valid_attack",
    "train.valid_every",
)
"""Keys that all recipes of a comparison take from the first one, besides [eval]."""
LONGEST_NAME = 200
"""Bytes of a recipe's name, to which the seed is added."""


def plan(
    given: Sequence[Recipe | str | Path | Mapping[str, Any]],
    overrides: Overrides,
    seeds: int,
    note: Callable[[str], None] = lambda text: None,
    epochs: int | None = None,
) -> list[Recipe]:
    """The runs in training order: all recipes with the first seed, then with the next one. `note`
    receives the overridden keys. Recipes are stretched to `epochs`, if given."""
    loaded = [recipes.load(recipe, overrides, epochs=epochs) for recipe in given]
    for recipe in loaded:
        check_name(recipe.name)
        refuse_placeholders(recipe)
    titles = [recipe.name for recipe in loaded]
    if len(set(titles)) < len(titles):
        raise InputError(
            f"two recipes are named {next(t for t in titles if titles.count(t) > 1)!r}; rename one "
            "(in Python, amata.recipes.load(recipe, name=...))"
        )
    first = loaded[0]
    for recipe in loaded:
        if isinstance(recipe.data, PythonData):
            raise InputError(
                f"{recipe.name} was trained in Python, on its own data; `amata report` compares "
                "finished runs"
            )
    for recipe in loaded:
        same_data = (recipe.data.name, recipe.data.root) == (first.data.name, first.data.root)
        if recipe.tables["threat"] != first.tables["threat"] or not same_data:
            raise InputError(
                f"{recipe.name} and {first.name} differ in [threat] or [data], so their accuracies "
                "cannot be compared; choose recipes that share both"
            )
    planned = []
    for seed in range(first.train.seed, first.train.seed + seeds):
        for recipe in loaded:
            tables = {section: dict(table) for section, table in recipe.tables.items()}
            for key in [*SHARED, *(f"eval.{name}" for name in first.tables["eval"])]:
                section, _, name = key.partition(".")
                if tables[section][name] != first.tables[section][name]:
                    tables[section][name] = first.tables[section][name]
                    if seed == first.train.seed:
                        note(
                            f"{recipe.name}: {key} is set to {tables[section][name]}, as in "
                            f"{first.name}"
                        )
            tables["train"]["seed"] = seed
            planned.append(rebuilt(recipes.parse(tables, recipe.name), recipe))
    seen: dict[str, str] = {}
    for recipe in planned[: len(loaded)]:
        if (other := seen.setdefault(recipe.fingerprint(), recipe.name)) != recipe.name:
            raise InputError(
                f"{other} and {recipe.name} are the same recipe; pass only one of them"
            )
    return planned


def check_name(name: str) -> None:
    """Refuse a name that is not that of one folder: runs are called by it."""
    if not isinstance(name, str) or not name.strip(". ") or set(name) & set("/\\\0"):
        raise InputError(f"recipe name {shorten(repr(name), 80)} cannot be the name of a folder")
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        raise InputError(
            f"recipe name {shorten(repr(name), 80)} is too long for the name of a folder"
        )


def run_name(recipe: Recipe) -> str:
    return f"{recipe.name}-seed{recipe.train.seed}"


def run_plan(
    planned: Sequence[Recipe],
    out: Path,
    reporter: Reporter,
    target: float | None = None,
    jobs: int = 1,
) -> tuple[list[RunFolder], list[str]]:
    """Train the runs of a plan, or resume them, `jobs` at a time. Returns the finished runs and a
    message for each failed one.

    Everything that can be refused is refused before plan.json is written.
    """
    check_target(target)
    variables = check_jobs(jobs, planned) if jobs > 1 else []
    out.mkdir(parents=True, exist_ok=True)
    names = [run_name(recipe) for recipe in planned]
    with hold(out, "comparing recipes"), shared_data(), code_for(len(planned)):
        check_same_runs(out, names)
        folders = [out / "runs" / name for name in names]
        check_runs(list(zip(folders, planned, strict=True)))
        costs = [planned_cost(*of_run) for of_run in zip(folders, planned, strict=True)]
        write_record(out / "plan.json", {"order": names, "target": target})
        return _train(planned, folders, costs, reporter, variables)


def _train(
    planned: Sequence[Recipe],
    folders: Sequence[Path],
    costs: Sequence[float],
    reporter: Reporter,
    variables: Sequence[dict[str, str]] = (),
) -> tuple[list[RunFolder], list[str]]:
    runs: list[RunFolder] = []
    failures: list[str] = []
    infos = run_infos([folder.name for folder in folders], costs)
    if variables:
        every = zip(folders, planned, infos, strict=True)
        left = [run for run in every if not RunFolder(run[0]).finished]
        failures += train_runs(left, variables, reporter)
        runs += [run for folder in folders if (run := RunFolder(folder)).finished]
    for folder, recipe, info in [] if variables else zip(folders, planned, infos, strict=True):
        reporter.run(info)
        try:
            runs.append(train_or_resume(folder, recipe, reporter))
        except (InputError, Interrupted):
            raise
        except AmataError as error:
            failures.append(f"{run_name(recipe)} failed: {error}")
            reporter.note(failures[-1])
    if not runs:
        raise AmataError(f"every run failed: {failures[0]}")
    return runs, failures


def check_same_runs(out: Path, names: Sequence[str]) -> None:
    """Refuse a folder whose plan or report has other runs. More runs may join them."""
    planned = [name for name in _read_plan(out)["order"] if (out / "runs" / name).is_dir()]
    before = [*planned, *_reported(out)]
    if others := [name for name in dict.fromkeys(before) if name not in names]:
        raise InputError(
            f"{out} holds a comparison with other runs ({', '.join(others[:3])}"
            f"{', ...' if len(others) > 3 else ''}); choose another folder"
        )


def _reported(out: Path) -> list[str]:
    """The runs of the report in a folder."""
    file = out / "compare.json"
    try:
        return [str(name) for name in read_json(file)["order"]] if file.is_file() else []
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file} is damaged; delete it, or choose another folder") from None


def find_runs(targets: Sequence[Path]) -> tuple[list[RunFolder], float | None]:
    """The run folders in these folders, and the target of the first plan that has one.

    A target is a run folder, a comparison (its runs come in the planned order), or a folder of run
    folders.
    """
    runs, goal = [], None
    for target in targets:
        if (target / "recipe.toml").is_file():
            runs.append(RunFolder.open(target.resolve())[0])
            continue
        planned = _read_plan(target)
        home = target / "runs" if (target / "runs").is_dir() else target
        names = planned.get("order") or sorted(f.parent.name for f in home.glob("*/recipe.toml"))
        if not names:
            raise InputError(
                f"{target} is neither a run folder nor a folder of runs: it has no recipe.toml, "
                "and neither has any folder in it"
            )
        goal = goal or planned.get("target")
        folders = [(home / name).resolve() for name in names]
        runs += [
            RunFolder.open(folder)[0] for folder in folders if (folder / "recipe.toml").is_file()
        ]
    if not runs:
        raise InputError(
            f"{', '.join(map(str, targets))} holds no runs yet; repeat `amata compare`"
        )
    for run in runs:
        run.check_finished()
    return runs, goal


def _read_plan(folder: Path) -> dict[str, Any]:
    file = folder / "plan.json"
    try:
        found = read_record(file) if file.is_file() else {}
        order, target = found.get("order", []), found.get("target")
        if not isinstance(order, list) or any(name != Path(name).name for name in order):
            raise ValueError  # such as ../other
        check_target(target)
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{file} is damaged; delete it to use all runs in {folder / 'runs'}"
        ) from None
    return {"order": order, "target": target}


def check_target(target: float | None) -> None:
    if target is not None and not 0 < target < 1:
        raise InputError(f"the target {target:g} must be an accuracy between 0 and 1, such as 0.45")
