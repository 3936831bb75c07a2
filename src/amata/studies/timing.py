"""Whether the training times of runs can be compared: which ran at the same time, and which were
slowed by other work on the machine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from amata.recipes import Recipe
from amata.runs import RunFolder

Trained = Literal["sequential", "parallel", "unknown"]
"""Whether runs trained one after the other, some at the same time, or that is not recorded."""

SLOWED, LEAST_SECONDS = 1.3, 2.0
"""A run was slowed if it took so many times what its epochs need, and so many seconds more. On a
quiet machine equal epochs differ by a tenth."""

PACE = {
    "data": None,
    "model": None,
    "method": None,
    "optim": ("name",),
    "train": ("engine", "precision", "compile", "deterministic", "accumulate", "attack_mode"),
}
"""Tables and keys of a recipe, None for all, that decide how fast a gradient is evaluated."""


def training_times(runs: Sequence[RunFolder]) -> tuple[Trained, list[str]]:
    """Whether the runs trained one after the other, and a warning if some did not."""
    spans: list[tuple[float, float, str]] = []
    for run in runs:
        before = 0.0
        for row in run.epochs():
            if "unix_seconds" not in row:
                return "unknown", []
            end, seconds = row["unix_seconds"], row["train_seconds"] - before
            spans.append((end - seconds, end, run.path.name))
            before = row["train_seconds"]
    end, last = 0.0, ""
    for start, stop, name in sorted(spans):
        if start < end and name != last:
            return "parallel", [
                f"{last} and {name} trained at the same time and may have slowed each other: "
                "compare gradient evaluations, not seconds"
            ]
        end, last = (stop, name) if stop >= end else (end, last)
    return "sequential", []


class _Epoch(NamedTuple):
    kind: str
    """What decides its pace: epochs of one kind differ in their gradient evaluations alone."""
    evals: int
    seconds: float


def slowed_runs(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """A warning if runs took much longer than epochs of the same kind allow, in this run or
    another, compared with the run that came closest to that."""
    runs = [(run.path.name, _epochs(run, recipe)) for run, recipe in opened]
    fastest: dict[str, dict[int, float]] = {}
    for kind, evals, seconds in (epoch for _, epochs in runs for epoch in epochs):
        known = fastest.setdefault(kind, {})
        known[evals] = min(seconds, known.get(evals, seconds))
    totals = [
        (
            name,
            sum(epoch.seconds for epoch in epochs),
            sum(_enough(epoch.evals, fastest[epoch.kind]) for epoch in epochs),
        )
        for name, epochs in runs
    ]
    best = min((took / least for _, took, least in totals if least > 0), default=1.0)
    slowed = [
        (took - least * best, f"it trained for {took:.0f} s where {least * best:.0f} s", name)
        for name, took, least in totals
        if took > max(SLOWED * least * best, least * best + LEAST_SECONDS)
    ]
    if not slowed:
        return []
    _, how, name = max(slowed)
    more = f", and {len(slowed) - 1} more too" if len(slowed) > 1 else ""
    return [
        f"{name} seems to have been slowed by other work on the machine{more}: {how} would do, by "
        "the fastest epochs. Compare gradient evaluations, not seconds"
    ]


def _enough(evals: int, fastest: Mapping[int, float]) -> float:
    """Seconds that an epoch with so many gradient evaluations needs at most, by others of its kind:
    no more than one with more of them, and none more per evaluation than one with fewer. Updates
    cost as much in all of them.

    >>> _enough(30, {20: 4.0, 30: 9.0, 40: 5.0}), _enough(30, {20: 3.0, 40: 5.0})
    (5.0, 4.5)
    """
    return min(
        seconds if evals <= known else seconds * evals / max(known, 1)
        for known, seconds in fastest.items()
    )


def _epochs(run: RunFolder, recipe: Recipe) -> list[_Epoch]:
    pace = [
        {k: v for k, v in recipe.tables[section].items() if keys is None or k in keys}
        for section, keys in PACE.items()
    ]
    found = []
    before, seconds = (0, 0, 0), 0.0
    for row in run.epochs():
        spent = row["grad_evals"], row.get("first_layer_evals", 0), row.get("probe_evals", 0)
        evals, *others = (now - then for now, then in zip(spent, before, strict=True))
        kind = json.dumps([pace, row.get("size"), others], default=str)
        found.append(_Epoch(kind, evals, row["train_seconds"] - seconds))
        before, seconds = spent, row["train_seconds"]
    return found


def timing_facts(environment: Mapping[str, Any]) -> tuple[Any, ...]:
    """The facts that decide how fast a recipe trains."""
    return tuple(environment.get(key) for key in ("device", "machine", "threads", "packages"))
