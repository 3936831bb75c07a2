"""Recipes side by side: trained in one process on one device, evaluated alike, and told with time, cost and intervals.

All recipes share the first one's data, threat, evaluation and validation; what else differs between them is listed. A comparison is made of
run folders alone, so it can be made again from them, and an interrupted one goes on where it was.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amata import recipes
from amata.errors import AmataError, InputError
from amata.evaluation import wilson
from amata.recipes import Recipe
from amata.studies.runs import taken_up
from amata.training import Interrupted, Reporter, RunFolder
from amata.training.files import write_json

SHARED = ("data.valid", "data.test_share", "data.resize", "data.crop", "train.valid_attack", "train.valid_every")
"""Keys that all recipes of a comparison must have in common, beside [eval]; where they differ, the first recipe's hold."""

HARMLESS = frozenset({"data.workers", "train.seed", "train.keep_epochs", "train.save_minutes", "train.tensorboard"})
"""Keys that change neither what is computed nor how fast."""

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5% for 1, 2, .. degrees of freedom."""


def plan(names: Sequence[str], overrides: Sequence[str], seeds: int, note: Callable[[str], None] = lambda text: None) -> list[Recipe]:
    """The runs to make, in their order: seed by seed, and for each seed recipe by recipe. `note` is told of keys that were made alike."""
    loaded = [recipes.load(name, overrides) for name in names]
    titles = [recipe.name for recipe in loaded]
    if len(set(titles)) < len(titles):
        raise InputError(f"two recipes are both called {next(t for t in titles if titles.count(t) > 1)!r}; rename one's file")
    first = loaded[0]
    for recipe in loaded:
        same_data = (recipe.data.name, recipe.data.root) == (first.data.name, first.data.root)
        if recipe.tables["threat"] != first.tables["threat"] or not same_data:
            raise InputError(f"{recipe.name} and {first.name} differ in [threat] or in their data, so their accuracies cannot be compared")
    planned = []
    for seed in range(first.train.seed, first.train.seed + seeds):
        for recipe in loaded:
            tables = {section: dict(table) for section, table in recipe.tables.items()}
            for key in [*SHARED, *(f"eval.{name}" for name in first.tables["eval"])]:
                section, _, name = key.partition(".")
                if tables[section][name] != first.tables[section][name]:
                    tables[section][name] = first.tables[section][name]
                    if seed == first.train.seed:
                        note(f"{recipe.name} takes {key} = {tables[section][name]} over from {first.name}")
            tables["train"]["seed"] = seed
            planned.append(recipes.parse(tables, recipe.name))
    return planned


def run_name(recipe: Recipe) -> str:
    return f"{recipe.name}-seed{recipe.train.seed}"


def make_runs(planned: Sequence[Recipe], out: Path, reporter: Reporter, target: float | None = None) -> tuple[list[RunFolder], list[str]]:
    """The runs of a plan, and what became of those that could not be finished; the others are made all the same."""
    check_target(target)
    out.mkdir(parents=True, exist_ok=True)
    names, before = [run_name(recipe) for recipe in planned], _planned(out).get("order", [])
    if left_out := [name for name in before if name not in names and (out / "runs" / name).is_dir()]:
        reporter.note(f"{', '.join(left_out)} of an earlier plan stay in {out / 'runs'} and are not in this report")
    write_json(out / "plan.json", {"order": names, "target": target})
    runs, failures = [], []
    for recipe in planned:
        try:
            runs.append(taken_up(out / "runs" / run_name(recipe), recipe, reporter))
        except (InputError, Interrupted):
            raise
        except AmataError as error:
            failures.append(f"{run_name(recipe)} was not finished: {error}")
            reporter.note(failures[-1])
    if not runs:
        raise AmataError(f"no run was finished: {failures[0]}")
    return runs, failures


def found_runs(targets: Sequence[Path]) -> tuple[list[RunFolder], float | None]:
    """The run folders given, and those of comparisons given, in the order in which these were planned; and the target planned for."""
    runs, goal = [], None
    for target in targets:
        if (target / "recipe.toml").is_file():
            runs.append(RunFolder.open(target.resolve())[0])
            continue
        planned = _planned(target)
        home = target / "runs" if (target / "runs").is_dir() else target
        names = planned.get("order") or sorted(f.parent.name for f in home.glob("*/recipe.toml"))
        if not names:
            raise InputError(f"{target} is neither a run folder nor a folder of runs: there is no recipe.toml in it or one below")
        goal = goal or planned.get("target")
        folders = [(home / name).resolve() for name in names]
        runs += [RunFolder.open(folder)[0] for folder in folders if (folder / "recipe.toml").is_file()]
    if not runs:
        raise InputError(f"no run was made in {', '.join(map(str, targets))} yet")
    for run in runs:
        if not run.finished:
            raise InputError(f"{run.path} is not finished; `amata train --resume {run.path}` first")
    return runs, goal


def _planned(folder: Path) -> dict[str, Any]:
    file = folder / "plan.json"
    try:
        found = json.loads(file.read_text()) if file.is_file() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{file} is damaged; delete it to have all runs in {folder / 'runs'} taken")
    return found


def check_target(target: float | None) -> None:
    if target is not None and not 0 < target < 1:
        raise InputError(f"--target {target:g} must be an accuracy between 0 and 1, as in --target 0.45")


def describe(
    runs: Sequence[RunFolder],
    target: float | None = None,
    criterion: Path | None = None,
    *,
    together: bool = False,
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """All that a report tells, as plain data: a row per recipe, a curve per run, what differs, and where it was measured.

    `together` says that the runs were made by one process, one after the other.
    """
    check_target(target)
    opened = [(run, RunFolder.open(run.path)[1]) for run in runs]
    names = _titles(opened)
    curves = [_curve(run, recipe, title) for (run, recipe), title in zip(opened, names, strict=True)]
    titles = list(dict.fromkeys(names))
    warnings = [*failures, *_warnings(opened)]
    source = "given"
    if target is None:
        target, problem = _common_target(curves)
        source = "the highest whole percentage that every run reached"
        warnings += [problem] if problem else []
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in runs]
    rows = [_row(title, [(c, s) for c, s in zip(curves, summaries, strict=True) if c["recipe"] == title], target) for title in titles]
    for row in rows:
        row["speedup"] = rows[0]["train_seconds"] / row["train_seconds"] if row["train_seconds"] else None
        to_target, reference = row["time_to_target"], rows[0]["time_to_target"]
        row["speedup_to_target"] = reference / to_target if to_target and reference else None
        row["cost_ratio"] = row["grad_evals"] / rows[0]["grad_evals"]
        told: dict[str, list[str]] = {}
        for attack, accuracy in row["accuracies"].items():
            for warning in accuracy["warnings"]:
                told.setdefault(warning, []).append(attack)
        warnings += [f"{row['recipe']}, {', '.join(attacks)}: {warning}" for warning, attacks in told.items()]
    measured = json.loads(criterion.read_text())["strategies"] if criterion and criterion.is_file() else []
    environments = [_environment(run) for run in runs]
    return {
        "target": target,
        "target_source": source,
        "valid_attack": opened[0][1].train.valid_attack,
        "valid_n": opened[0][1].data.valid,
        "order": [run.path.name for run in runs],
        "together": together,
        "times_comparable": all(_clock(env) == _clock(environments[0]) for env in environments),
        "attacks": list(dict.fromkeys(attack for row in rows for attack in row["accuracies"])),
        "images": sorted({a["n"] for row in rows for a in row["accuracies"].values()}),
        "rows": rows,
        "curves": curves,
        "criterion": [{"run": m["strategy"], "c": m["c"], "c_stderr": m["c_stderr"], "epochs": m["epochs"]} for m in measured],
        "differences": _differences({title: recipe for (_, recipe), title in zip(opened, names, strict=True)}),
        "threat": opened[0][1].tables["threat"],
        "data": opened[0][1].data.name,
        "environment": environments[0],
        "other_environments": [env for i, env in enumerate(environments) if env not in environments[:i]][1:],
        "warnings": warnings,
    }


def _titles(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """What each run's recipe is called: its name, with a number where recipes of one name are not the same."""
    seen: dict[tuple[str, int], str] = {}
    by_name: dict[str, list[str]] = {}
    keys = []
    for run, recipe in opened:
        tables = recipe.deciding()
        key = json.dumps({**tables, "train": {k: v for k, v in tables["train"].items() if k != "seed"}}, sort_keys=True)
        if (key, recipe.train.seed) in seen:
            raise InputError(f"{seen[key, recipe.train.seed]} and {run.path} are the same recipe with the same seed; give one of them")
        seen[key, recipe.train.seed] = str(run.path)
        keys.append(key)
        variants = by_name.setdefault(recipe.name, [])
        if key not in variants:
            variants.append(key)
    titles = []
    for (_, recipe), key in zip(opened, keys, strict=True):
        variants = by_name[recipe.name]
        titles.append(recipe.name if len(variants) == 1 else f"{recipe.name} #{variants.index(key) + 1}")
    return titles


def _environment(run: RunFolder) -> dict[str, Any]:
    file = run.path / "env.json"
    if not file.is_file():
        raise InputError(f"{run.path} has no env.json, so it cannot be told where it was measured")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _clock(environment: dict[str, Any]) -> tuple[Any, ...]:
    """What decides how fast a run is, beside its recipe."""
    return tuple(environment.get(key) for key in ("device", "machine", "threads", "packages"))


def _curve(run: RunFolder, recipe: Recipe, title: str) -> dict[str, Any]:
    """One run, epoch by epoch; an epoch that was rolled back is an event, not a point."""
    rows = run.read_rows()
    attack = recipe.train.valid_attack
    keys = ("epoch", "steps", "step_size", "loss", "lr", "train_seconds", "grad_evals")
    points = [{**{k: row[k] for k in keys}, **_validated(row, attack)} for row in rows if "event" not in row]
    events = [row for row in rows if "event" in row]
    return {"run": run.path.name, "recipe": title, "seed": recipe.train.seed, "points": points, "events": events}


def _validated(row: dict[str, Any], attack: str) -> dict[str, float | None]:
    valid = row.get("valid", {})
    return {"clean": valid.get("clean"), "robust": valid.get(attack)}


def _common_target(curves: Sequence[dict[str, Any]]) -> tuple[float | None, str | None]:
    """The highest whole percentage that every run reached; or none, and why."""
    bests = {c["run"]: max((p["robust"] for p in c["points"] if p["robust"] is not None), default=None) for c in curves}
    reached = [best for best in bests.values() if best is not None]
    if len(reached) < len(bests):
        return None, None
    low = min(reached)
    if low < 0.5 * statistics.median(reached):
        worst = next(run for run, best in bests.items() if best == low)
        return None, f"{worst} never got beyond {low:.0%}, so there is no target that all could race to; give one with --target"
    return math.floor(100 * low + 1e-9) / 100 or None, None


def _row(title: str, of_recipe: list[tuple[dict[str, Any], dict[str, Any]]], target: float | None) -> dict[str, Any]:
    curves, summaries = [c for c, _ in of_recipe], [s for _, s in of_recipe]
    reached = [_reached(c, target) for c in curves]
    seconds, costs = [s["train_seconds"] for s in summaries], [s["grad_evals"] for s in summaries]
    all_there = all(r is not None for r in reached) and target is not None
    return {
        "recipe": title,
        "seeds": [c["seed"] for c in curves],
        "accuracies": {attack: _accuracy([s["evaluation"][attack] for s in summaries]) for attack in summaries[0]["evaluation"]},
        "train_seconds": statistics.mean(seconds),
        "train_seconds_per_seed": seconds,
        "grad_evals": statistics.mean(costs),
        "grad_evals_per_image": statistics.mean(s["grad_evals_per_image"] for s in summaries),
        "best_epochs": [s["best_epoch"] for s in summaries],
        "time_to_target": statistics.mean(r["train_seconds"] for r in reached if r) if all_there else None,
        "time_to_target_per_seed": [r["train_seconds"] if r else None for r in reached],
        "cost_to_target": statistics.mean(r["grad_evals"] for r in reached if r) if all_there else None,
        "epochs_to_target": [r["epoch"] + 1 if r else None for r in reached],
    }


def _reached(curve: dict[str, Any], target: float | None) -> dict[str, Any] | None:
    """The first epoch whose held-out robust accuracy is at least the target."""
    return next((p for p in curve["points"] if target is not None and p["robust"] is not None and p["robust"] >= target), None)


def _accuracy(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds with a 95% interval: Wilson's over the images for one seed; for several, Student's over seeds and Wilson's
    over the images, added in quadrature."""
    values, n = [r["accuracy"] for r in results], results[0]["n"]
    mean = statistics.mean(values)
    if len(values) == 1:
        low, high = wilson(round(mean * n), n)
    else:
        over_seeds = T975[min(len(values) - 2, len(T975) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
        below, above = wilson(round(mean * n), n)
        low, high = max(0.0, mean - math.hypot(over_seeds, mean - below)), min(1.0, mean + math.hypot(over_seeds, above - mean))
    warnings = sorted({w for r in results for w in r["warnings"]})
    return {"accuracy": mean, "n": n, "low": low, "high": high, "per_seed": values, "params": results[0]["params"], "warnings": warnings}


def _differences(by_name: dict[str, Recipe]) -> list[dict[str, Any]]:
    """The keys on which recipes differ, with each one's value."""
    found = []
    keys = dict.fromkeys(f"{section}.{key}" for recipe in by_name.values() for section, table in recipe.tables.items() for key in table)
    for key in keys:
        section, _, name = key.partition(".")
        values = [recipe.tables.get(section, {}).get(name) for recipe in by_name.values()]
        if key not in HARMLESS and any(v != values[0] for v in values):
            found.append({"key": key, "values": dict(zip(by_name, values, strict=True))})
    return found


def _warnings(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """What a reader must know before comparing."""
    found = []
    environments = [_environment(run) for run, _ in opened]
    kinds = {"device": "devices", "commit": "commits of amata", "packages": "package versions", "threads": "numbers of threads"}
    different = [title for key, title in kinds.items() if any(env.get(key) != environments[0].get(key) for env in environments)]
    if different:
        found.append(f"these runs were made with different {' and '.join(different)}: compare gradient evaluations rather than seconds")
    first = opened[0][1]
    same = {
        "trained against different threats: their robust accuracies mean different things": lambda r: r.tables["threat"],
        "trained or tested on different data": lambda r: (r.data.name, r.data.root, r.data.valid),
        "evaluated differently": lambda r: r.tables["eval"],
        "validated differently, so curves and target mean different things": lambda r: (r.train.valid_attack, r.train.valid_every),
    }
    found += [f"these runs were {what}" for what, of in same.items() if any(of(recipe) != of(first) for _, recipe in opened)]
    if len({recipe.train.seed for _, recipe in opened}) == 1:
        found.append("one seed each: the intervals are over test images alone and say nothing about training luck")
    return found
