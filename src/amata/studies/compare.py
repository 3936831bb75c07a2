"""What runs tell side by side: time, cost and accuracies with intervals, from their folders alone;
and what differs between them."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amata.errors import InputError
from amata.evaluation import wilson
from amata.metrics import EpochRow
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.studies.plan import check_target

HARMLESS = frozenset(
    {"data.workers", "train.seed", "train.keep_epochs", "train.save_minutes", "train.tensorboard"}
)
"""Keys that change neither what is computed nor how fast."""

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5% for 1, 2, .. degrees of freedom."""


def describe(
    runs: Sequence[RunFolder],
    target: float | None = None,
    criterion: Path | None = None,
    *,
    together: bool = False,
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """All that a report tells, as plain data: a row per recipe, a curve per run, what differs, and
    where it was measured.

    `together` says that the runs were made by one process, one after the other.
    """
    check_target(target)
    opened = [(run, RunFolder.open(run.path)[1]) for run in runs]
    names = _titles(opened)
    curves = [
        _curve(run, recipe, title) for (run, recipe), title in zip(opened, names, strict=True)
    ]
    titles = list(dict.fromkeys(names))
    warnings = [*failures, *_warnings(opened)]
    source = "given"
    if target is None:
        target, problem = _common_target(curves)
        source = "the highest whole percentage that every run reached"
        warnings += [problem] if problem else []
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in runs]
    rows = [
        _row(
            title,
            [(c, s) for c, s in zip(curves, summaries, strict=True) if c["recipe"] == title],
            target,
        )
        for title in titles
    ]
    for row in rows:
        row["speedup"] = (
            rows[0]["train_seconds"] / row["train_seconds"] if row["train_seconds"] else None
        )
        to_target, reference = row["time_to_target"], rows[0]["time_to_target"]
        row["speedup_to_target"] = reference / to_target if to_target and reference else None
        row["cost_ratio"] = row["grad_evals"] / rows[0]["grad_evals"]
        told: dict[str, list[str]] = {}
        for attack, accuracy in row["accuracies"].items():
            for warning in accuracy["warnings"]:
                told.setdefault(warning, []).append(attack)
        warnings += [
            f"{row['recipe']}, {', '.join(attacks)}: {warning}" for warning, attacks in told.items()
        ]
    measured = (
        json.loads(criterion.read_text())["strategies"] if criterion and criterion.is_file() else []
    )
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
        "criterion": [
            {"run": m["strategy"], "c": m["c"], "c_stderr": m["c_stderr"], "epochs": m["epochs"]}
            for m in measured
        ],
        "differences": _differences(
            {title: recipe for (_, recipe), title in zip(opened, names, strict=True)}
        ),
        "threat": opened[0][1].tables["threat"],
        "data": opened[0][1].data.name,
        "environment": environments[0],
        "other_environments": [
            env for i, env in enumerate(environments) if env not in environments[:i]
        ][1:],
        "warnings": warnings,
    }


def _titles(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """What each run's recipe is called: its name, with a number where recipes of one name are not
    the same."""
    seen: dict[tuple[str, int], str] = {}
    by_name: dict[str, list[str]] = {}
    keys = []
    for run, recipe in opened:
        tables = recipe.deciding()
        key = json.dumps(
            {**tables, "train": {k: v for k, v in tables["train"].items() if k != "seed"}},
            sort_keys=True,
        )
        if (key, recipe.train.seed) in seen:
            raise InputError(
                f"{seen[key, recipe.train.seed]} and {run.path} are the same recipe with the "
                "same seed; give one of them"
            )
        seen[key, recipe.train.seed] = str(run.path)
        keys.append(key)
        variants = by_name.setdefault(recipe.name, [])
        if key not in variants:
            variants.append(key)
    titles = []
    for (_, recipe), key in zip(opened, keys, strict=True):
        variants = by_name[recipe.name]
        titles.append(
            recipe.name if len(variants) == 1 else f"{recipe.name} #{variants.index(key) + 1}"
        )
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
    attack = recipe.train.valid_attack
    keys = ("epoch", "steps", "step_size", "loss", "lr", "train_seconds", "grad_evals")
    points = [
        {**{k: v for k, v in row.items() if k in keys}, **_validated(row, attack)}
        for row in run.epochs()
    ]
    return {
        "run": run.path.name,
        "recipe": title,
        "seed": recipe.train.seed,
        "points": points,
        "events": run.events(),
    }


def _validated(row: EpochRow, attack: str) -> dict[str, float | None]:
    valid = row.get("valid", {})
    return {"clean": valid.get("clean"), "robust": valid.get(attack)}


def _common_target(curves: Sequence[dict[str, Any]]) -> tuple[float | None, str | None]:
    """The highest whole percentage that every run reached; or none, and why."""
    bests = {
        c["run"]: max((p["robust"] for p in c["points"] if p["robust"] is not None), default=None)
        for c in curves
    }
    reached = [best for best in bests.values() if best is not None]
    if len(reached) < len(bests):
        return None, None
    low = min(reached)
    if low < 0.5 * statistics.median(reached):
        worst = next(run for run, best in bests.items() if best == low)
        return (
            None,
            f"{worst} never got beyond {low:.0%}, so there is no target that all could race "
            "to; give one with --target",
        )
    return math.floor(100 * low + 1e-9) / 100 or None, None


def _row(
    title: str, of_recipe: list[tuple[dict[str, Any], dict[str, Any]]], target: float | None
) -> dict[str, Any]:
    curves, summaries = [c for c, _ in of_recipe], [s for _, s in of_recipe]
    reached = [_reached(c, target) for c in curves]
    seconds, costs = [s["train_seconds"] for s in summaries], [s["grad_evals"] for s in summaries]
    all_there = all(r is not None for r in reached) and target is not None
    return {
        "recipe": title,
        "seeds": [c["seed"] for c in curves],
        "accuracies": {
            attack: _accuracy([s["evaluation"][attack] for s in summaries])
            for attack in summaries[0]["evaluation"]
        },
        "train_seconds": statistics.mean(seconds),
        "train_seconds_per_seed": seconds,
        "grad_evals": statistics.mean(costs),
        "grad_evals_per_image": statistics.mean(s["grad_evals_per_image"] for s in summaries),
        "best_epochs": [s["best_epoch"] for s in summaries],
        "time_to_target": statistics.mean(r["train_seconds"] for r in reached if r)
        if all_there
        else None,
        "time_to_target_per_seed": [r["train_seconds"] if r else None for r in reached],
        "cost_to_target": statistics.mean(r["grad_evals"] for r in reached if r)
        if all_there
        else None,
        "epochs_to_target": [r["epoch"] + 1 if r else None for r in reached],
    }


def _reached(curve: dict[str, Any], target: float | None) -> dict[str, Any] | None:
    """The first epoch whose held-out robust accuracy is at least the target."""
    return next(
        (
            p
            for p in curve["points"]
            if target is not None and p["robust"] is not None and p["robust"] >= target
        ),
        None,
    )


def _accuracy(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds with a 95% interval: Wilson's over the images for one seed; for several,
    Student's over seeds and Wilson's over the images, added in quadrature."""
    values, n = [r["accuracy"] for r in results], results[0]["n"]
    mean = statistics.mean(values)
    if len(values) == 1:
        low, high = wilson(round(mean * n), n)
    else:
        over_seeds = (
            T975[min(len(values) - 2, len(T975) - 1)]
            * statistics.stdev(values)
            / math.sqrt(len(values))
        )
        below, above = wilson(round(mean * n), n)
        low, high = (
            max(0.0, mean - math.hypot(over_seeds, mean - below)),
            min(1.0, mean + math.hypot(over_seeds, above - mean)),
        )
    warnings = sorted({w for r in results for w in r["warnings"]})
    return {
        "accuracy": mean,
        "n": n,
        "low": low,
        "high": high,
        "per_seed": values,
        "params": results[0]["params"],
        "warnings": warnings,
    }


def _differences(by_name: dict[str, Recipe]) -> list[dict[str, Any]]:
    """The keys on which recipes differ, with each one's value."""
    found = []
    keys = dict.fromkeys(
        f"{section}.{key}"
        for recipe in by_name.values()
        for section, table in recipe.tables.items()
        for key in table
    )
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
    kinds = {
        "device": "devices",
        "commit": "commits of amata",
        "packages": "package versions",
        "threads": "numbers of threads",
    }
    different = [
        title
        for key, title in kinds.items()
        if any(env.get(key) != environments[0].get(key) for env in environments)
    ]
    if different:
        found.append(
            f"these runs were made with different {' and '.join(different)}: compare gradient "
            "evaluations rather than seconds"
        )
    first = opened[0][1]
    same = {
        "trained against different threats: their robust accuracies mean different "
        "things": lambda r: r.tables["threat"],
        "trained or tested on different data": lambda r: (r.data.name, r.data.root, r.data.valid),
        "evaluated differently": lambda r: r.tables["eval"],
        "validated differently, so curves and target mean different things": lambda r: (
            r.train.valid_attack,
            r.train.valid_every,
        ),
    }
    found += [
        f"these runs were {what}"
        for what, of in same.items()
        if any(of(recipe) != of(first) for _, recipe in opened)
    ]
    if len({recipe.train.seed for _, recipe in opened}) == 1:
        found.append(
            "one seed each: the intervals are over test images alone and say nothing about "
            "training luck"
        )
    return found
