"""The rows of a comparison: mean time, cost and accuracies of each recipe, over its seeds."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from amata.evaluation import wilson
from amata.studies.intervals import t_quantile


def common_target(curves: Sequence[dict[str, Any]]) -> tuple[float | None, str | None]:
    """The highest whole percentage that every run reached, or None and the reason."""
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
            f"{worst} never exceeded {low:.0%}, so the runs have no common target; set one "
            "(--target, in Python target=)",
        )
    return math.floor(100 * low + 1e-9) / 100 or None, None


def recipe_rows(
    titles: Sequence[str],
    curves: Sequence[dict[str, Any]],
    summaries: Sequence[dict[str, Any]],
    target: float | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row per recipe, and a warning if some runs have a test evaluation and others have none."""
    tested = [bool(s["evaluation"]) for s in summaries]
    runs = list(zip(curves, summaries, strict=True))
    rows = [
        _row(
            title,
            [(c, s) for c, s in runs if c["recipe"] == title],
            target,
            held_out=not all(tested),
        )
        for title in dict.fromkeys(titles)
    ]
    baseline = rows[0]
    for row in rows:
        row["speedup"] = (
            baseline["train_seconds"] / row["train_seconds"] if row["train_seconds"] else None
        )
        mine, reference = row["time_to_target"], baseline["time_to_target"]
        row["speedup_to_target"] = reference / mine if mine and reference else None
        row["cost_ratio"] = row["grad_evals"] / baseline["grad_evals"]
    if all(tested) or not any(tested):
        return rows, []
    names = ", ".join(c["run"] for c, there in zip(curves, tested, strict=True) if not there)
    return rows, [f"no test evaluation of {names}: compare the held-out accuracies"]


def _row(
    title: str,
    runs: list[tuple[dict[str, Any], dict[str, Any]]],
    target: float | None,
    *,
    held_out: bool,
) -> dict[str, Any]:
    """One recipe, from the curve and the summary of each run."""
    curves, summaries = [c for c, _ in runs], [s for _, s in runs]
    reached = [_reached(c, target) for c in curves]
    seconds, costs = [s["train_seconds"] for s in summaries], [s["grad_evals"] for s in summaries]
    all_reached = all(r is not None for r in reached) and target is not None
    evaluations = [s["evaluation"] for s in summaries]
    return {
        "recipe": title,
        "seeds": [c["seed"] for c in curves],
        "accuracies": {
            attack: _accuracy([{**e[attack], "split": "test"} for e in evaluations])
            for attack in evaluations[0]
            if all(attack in e for e in evaluations)
        }
        | (_held_out(runs) if held_out else {}),
        "train_seconds": statistics.mean(seconds),
        "train_seconds_per_seed": seconds,
        "grad_evals": statistics.mean(costs),
        "grad_evals_per_image": statistics.mean(s["grad_evals_per_image"] for s in summaries),
        "best_epochs": [s["best_epoch"] for s in summaries],
        "time_to_target": statistics.mean(r["train_seconds"] for r in reached if r)
        if all_reached
        else None,
        "time_to_target_per_seed": [r["train_seconds"] if r else None for r in reached],
        "cost_to_target": statistics.mean(r["grad_evals"] for r in reached if r)
        if all_reached
        else None,
        "epochs_to_target": [r["epoch"] + 1 if r else None for r in reached],
    }


def _held_out(runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Held-out accuracies at the best epoch, or at the last one if none was chosen."""
    points = []
    for curve, summary in runs:
        validated = [p for p in curve["points"] if p["clean"] is not None]
        if not validated:
            return {}
        best = [p for p in validated if p["epoch"] == summary["best_epoch"]]
        points.append((best or validated[-1:])[0])
    (curve, _), *_ = runs
    names = {"clean": "clean", "robust": curve["valid_attack"]}
    params = {"clean": {}, "robust": curve["valid_params"]}
    return {
        f"held-out {name}": _accuracy(
            [
                {
                    "accuracy": p[key],
                    "n": curve["valid_n"],
                    "split": "held-out",
                    "params": params[key],
                    "warnings": [],
                }
                for p in points
            ]
        )
        for key, name in names.items()
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


def tested(result: dict[str, Any]) -> dict[str, Any]:
    """What two results must share to be compared; tf32 or fp32 is left out: it changes an image in
    thousands at most."""
    params = {key: v for key, v in result["params"].items() if key != "precision"}
    return {"split": result["split"], "n": result["n"], **params}


def _accuracy(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds with a 95% interval.

    One seed: Wilson's interval over images. Several: Student's over seeds and Wilson's over images,
    added in quadrature.
    """
    values, n = [r["accuracy"] for r in results], results[0]["n"]
    mean = statistics.mean(values)
    if len(values) == 1:
        low, high = wilson(round(mean * n), n)
    else:
        spread = statistics.stdev(values) / math.sqrt(len(values))
        over_seeds = t_quantile(len(values) - 1) * spread
        below, above = wilson(round(mean * n), n)
        low, high = (
            max(0.0, mean - math.hypot(over_seeds, mean - below)),
            min(1.0, mean + math.hypot(over_seeds, above - mean)),
        )
    warnings = sorted({w for r in results for w in r["warnings"]})
    alike = all(tested(r) == tested(results[0]) for r in results)
    if not alike:
        warnings.append("the seeds were tested on other numbers of images or with other parameters")
    return {
        "accuracy": mean,
        "n": n,
        "split": results[0]["split"],
        "low": low,
        "high": high,
        "per_seed": values,
        "params": results[0]["params"],
        "alike": alike,
        "warnings": warnings,
    }
