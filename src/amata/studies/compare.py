"""Recipes side by side: trained in one process on one device, evaluated alike, and told with time, cost and intervals.

All recipes share the first one's data, threat, evaluation and validation; what else differs between them is listed. A comparison is made of
run folders alone, so it can be made again from them, and an interrupted one goes on where it was.
"""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amata import recipes
from amata.errors import InputError
from amata.evaluation import wilson
from amata.recipes import OPERATIONAL, Recipe
from amata.studies.runs import taken_up
from amata.training import Reporter, RunFolder

SHARED = ("data.name", "data.valid", "data.test_share", "data.resize", "data.crop", "train.valid_attack", "train.valid_every")
"""Keys that all recipes of a comparison must have in common, beside [threat] and [eval]; where they differ, the first recipe's hold."""

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5% for 1, 2, .. degrees of freedom."""


def plan(names: Sequence[str], overrides: Sequence[str], seeds: int) -> list[Recipe]:
    """The runs to make, in their order: seed by seed, and for each seed recipe by recipe."""
    loaded = [recipes.load(name, overrides) for name in names]
    titles = [recipe.name for recipe in loaded]
    if len(set(titles)) < len(titles):
        raise InputError(f"two recipes are both called {next(t for t in titles if titles.count(t) > 1)!r}; rename one's file")
    first = loaded[0]
    for recipe in loaded:
        if recipe.tables["threat"] != first.tables["threat"] or recipe.data.name != first.data.name:
            raise InputError(f"{recipe.name} and {first.name} differ in [threat] or data.name, so their accuracies cannot be compared")
    planned = []
    for seed in range(first.train.seed, first.train.seed + seeds):
        for recipe in loaded:
            tables = {section: dict(table) for section, table in recipe.tables.items()} | {"eval": dict(first.tables["eval"])}
            for key in SHARED:
                section, _, name = key.partition(".")
                tables[section][name] = first.tables[section][name]
            tables["train"]["seed"] = seed
            planned.append(recipes.parse(tables, recipe.name))
    return planned


def run_name(recipe: Recipe) -> str:
    return f"{recipe.name}-seed{recipe.train.seed}"


def make_runs(planned: Sequence[Recipe], out: Path, reporter: Reporter) -> list[RunFolder]:
    return [taken_up(out / "runs" / run_name(recipe), recipe, reporter) for recipe in planned]


def found_runs(targets: Sequence[Path]) -> list[RunFolder]:
    """The run folders given, and those under `runs/` of comparisons given, in the order in which they were made."""
    runs = []
    for target in targets:
        if (target / "recipe.toml").is_file():
            runs.append(RunFolder.open(target)[0])
            continue
        known = target / "compare.json"
        order = json.loads(known.read_text())["order"] if known.is_file() else []
        folders = sorted((target / "runs").glob("*/recipe.toml"), key=lambda f: (f.parent.name not in order, _place(order, f.parent.name)))
        if not folders:
            raise InputError(f"{target} is neither a run folder nor a comparison: it has no recipe.toml and no runs/")
        runs += [RunFolder.open(folder.parent)[0] for folder in folders]
    for run in runs:
        if not run.finished:
            raise InputError(f"{run.path} is not finished; `amata train --resume {run.path}` first")
    return runs


def _place(order: list[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else 0, name)


def describe(runs: Sequence[RunFolder], target: float | None = None, criterion: Path | None = None) -> dict[str, Any]:
    """All that a report tells, as plain data: a row per recipe, a curve per run, what differs, and where it was measured."""
    if target is not None and not 0 < target < 1:
        raise InputError(f"--target {target:g} must be an accuracy between 0 and 1, as in --target 0.45")
    opened = [(run, RunFolder.open(run.path)[1]) for run in runs]
    curves = [_curve(run, recipe) for run, recipe in opened]
    titles = list(dict.fromkeys(recipe.name for _, recipe in opened))
    attack = opened[0][1].train.valid_attack
    source = "given"
    if target is None:
        target, source = _common_target(curves, titles), "the highest whole percentage that every recipe's median run reached"
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in runs]
    rows = [_row(title, [(c, s) for c, s in zip(curves, summaries, strict=True) if c["recipe"] == title], target) for title in titles]
    for row in rows:
        row["speedup"] = rows[0]["train_seconds"] / row["train_seconds"] if row["train_seconds"] else None
        to_target, reference = row["time_to_target"], rows[0]["time_to_target"]
        row["speedup_to_target"] = reference / to_target if to_target and reference else None
        row["cost_ratio"] = row["grad_evals"] / rows[0]["grad_evals"]
    measured = json.loads(criterion.read_text())["strategies"] if criterion and criterion.is_file() else []
    return {
        "target": target,
        "target_source": source,
        "valid_attack": attack,
        "order": [run.path.name for run in runs],
        "rows": rows,
        "curves": curves,
        "criterion": [{"run": m["strategy"], "c": m["c"], "c_stderr": m["c_stderr"], "epochs": m["epochs"]} for m in measured],
        "differences": _differences({recipe.name: recipe for _, recipe in opened}),
        "threat": opened[0][1].tables["threat"],
        "data": opened[0][1].data.name,
        "environment": json.loads((runs[0].path / "env.json").read_text()),
        "warnings": _warnings(opened),
    }


def _curve(run: RunFolder, recipe: Recipe) -> dict[str, Any]:
    """One run, epoch by epoch; an epoch that was rolled back is an event, not a point."""
    rows = run.read_rows()
    attack = recipe.train.valid_attack
    keys = ("epoch", "steps", "step_size", "loss", "lr", "train_seconds", "grad_evals")
    points = [{**{k: row[k] for k in keys}, **_validated(row, attack)} for row in rows if "event" not in row]
    events = [row for row in rows if "event" in row]
    return {"run": run.path.name, "recipe": recipe.name, "seed": recipe.train.seed, "points": points, "events": events}


def _validated(row: dict[str, Any], attack: str) -> dict[str, float | None]:
    valid = row.get("valid", {})
    return {"clean": valid.get("clean"), "robust": valid.get(attack)}


def _common_target(curves: Sequence[dict[str, Any]], titles: Sequence[str]) -> float | None:
    medians = []
    for title in titles:
        bests = [max((p["robust"] for p in c["points"] if p["robust"] is not None), default=None) for c in curves if c["recipe"] == title]
        if any(best is None for best in bests):
            return None
        medians.append(statistics.median_high(best for best in bests if best is not None))
    return math.floor(100 * min(medians)) / 100 or None


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
    """The mean over seeds with a 95% interval: Wilson's over the images for one seed; for several, Student's over seeds and the images'
    binomial one, added in quadrature because all seeds are judged on the same images."""
    values, n = [r["accuracy"] for r in results], results[0]["n"]
    mean = statistics.mean(values)
    if len(values) == 1:
        low, high = wilson(round(mean * n), n)
    else:
        over_seeds = T975[min(len(values) - 2, len(T975) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
        half = math.hypot(over_seeds, 1.96 * math.sqrt(mean * (1 - mean) / n))
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    warnings = sorted({w for r in results for w in r["warnings"]})
    return {"accuracy": mean, "n": n, "low": low, "high": high, "per_seed": values, "params": results[0]["params"], "warnings": warnings}


def _differences(by_name: dict[str, Recipe]) -> list[dict[str, Any]]:
    """The keys on which recipes differ, with each one's value."""
    found = []
    keys = dict.fromkeys(f"{section}.{key}" for recipe in by_name.values() for section, table in recipe.tables.items() for key in table)
    for key in keys:
        section, _, name = key.partition(".")
        values = [recipe.tables.get(section, {}).get(name) for recipe in by_name.values()]
        if key not in {*OPERATIONAL, "train.seed"} and any(v != values[0] for v in values):
            found.append({"key": key, "values": dict(zip(by_name, values, strict=True))})
    return found


def _warnings(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """What a reader must know before comparing."""
    found = []
    environments = [json.loads((run.path / "env.json").read_text()) for run, _ in opened]
    kinds = {"device": "devices", "commit": "commits of amata", "packages": "package versions", "threads": "numbers of threads"}
    for key, title in kinds.items():
        if any(env.get(key) != environments[0].get(key) for env in environments):
            found.append(f"these runs were made with different {title}: compare gradient evaluations, not seconds")
    if any(recipe.tables["threat"] != opened[0][1].tables["threat"] for _, recipe in opened):
        found.append("these runs were trained against different threats: their robust accuracies mean different things")
    if any(recipe.tables["eval"] != opened[0][1].tables["eval"] for _, recipe in opened):
        found.append("these runs were evaluated differently")
    if len({recipe.train.seed for _, recipe in opened}) == 1:
        found.append("one seed each: the intervals are over test images alone and say nothing about training luck")
    return found
