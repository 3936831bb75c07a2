"""The verdict on every claim in claims.toml, from stored results."""

import math
import statistics
import tomllib
from typing import Any

import numpy as np

import stored
from amata.studies.intervals import Estimate, over_seeds
from definition import FRONT, ROOT, Test
from differences import collapsed, difference
from page import attack_name, markdown
from steepness import rows_of, thirds
from study import STUDIES

CONFIRMED, NOT_REPRODUCED, OPEN = "confirmed", "not reproduced", "open"
ANSWERS = {CONFIRMED: "yes", NOT_REPRODUCED: "no", OPEN: "open"}
"""The verdicts as answers to questions of ours."""
SEEDS = 3
"""The fewest seeds of each arm that make a verdict."""
NOT_MEASURED = (OPEN, "not measured", "")


def claims() -> tuple[list[dict[str, Any]], float]:
    """The claims, and the margin in points."""
    stated = tomllib.loads((ROOT / "evidence" / "claims.toml").read_text())
    return stated["claims"], stated["margin"]


def decide(kind: str, found: Estimate, margin: float) -> str:
    """By the rules in claims.toml."""
    if found.seeds < SEEDS:
        return OPEN
    least, most = (0.0, margin) if kind == "better" else (-margin, 0.0)
    if found.low > least:
        return CONFIRMED
    return NOT_REPRODUCED if found.high < most else OPEN


def decide_times(first: list[float | None], second: list[float | None]) -> str:
    """Whether the first runs are sooner; None is a run that never gets there."""
    if min(len(first), len(second)) < SEEDS:
        return OPEN
    never = float("inf")
    a, b = ([never if t is None else t for t in times] for times in (first, second))
    if max(a) < min(b):
        return CONFIRMED
    return NOT_REPRODUCED if min(a) > max(b) or min(a) == never else OPEN


def verdict(claim: dict[str, Any], margin: float) -> tuple[str, str, str]:
    """The verdict, the number behind it, and the study."""
    if claim["kind"] == "steeper":
        return verdict_on_steepness(*claim["arm"])
    if "runs" in claim:
        every = (verdict_on_times(claim, runs) for runs in claim["runs"])
        return next((known for known in every if known != NOT_MEASURED), NOT_MEASURED)
    tests = [verdict_on_test(claim, margin, *test) for test in claim["tests"]]
    found = sorted(filter(None, tests), key=lambda known: known[0] < SEEDS)
    return found[0][1] if found else NOT_MEASURED


def verdict_on_test(
    claim: dict[str, Any], margin: float, study: str, arm: str, against: str
) -> tuple[int, tuple[str, str, str]] | None:
    """How many seeds a test has, and its verdict; None without results."""
    found = difference(study, Test(arm, against), claim["attack"])
    if found is None:
        said = one_seed(study, arm, against, claim["attack"])
        return (1, (OPEN, said, study)) if said else None
    lost = [len(collapsed(study).get(title, ())) for title in (arm, against)]
    said = f", collapsed: {lost[0]} and {lost[1]}" if any(lost) else ""
    planned = planned_seeds(study, arm, against)
    of = f" of {planned}" if found.seeds < planned else ""
    number = f"{found} points, {found.seeds}{of} seeds{said}"
    return found.seeds, (decide(claim["kind"], found, margin), number, study)


def planned_seeds(study: str, arm: str, against: str) -> int:
    """How many seeds a test has once all runs of its study are made."""
    own = STUDIES[study]
    arms = [arm, *(own.front if against == FRONT else (against,))]
    return min(own.more_seeds.get(title, own.seeds) for title in arms)


def at_equal_cost(claim: dict[str, Any]) -> tuple[str, Test] | None:
    """The study and the test at equal cost that decide a claim, if they are measured: two arms that
    cost the same, or an arm and the line of constants, unless these take as long as the arm."""
    if claim["kind"] == "better":
        for study, *arms in claim["tests"]:
            pair = Test(*arms)
            own = STUDIES[study]
            line = pair.against == FRONT and not own.equal_seconds
            if line or pair in (*own.equal, *own.equal_seconds):
                found = difference(study, pair, claim["attack"])
                if found and found.seeds >= SEEDS:
                    return study, pair
    return None


def one_seed(study: str, arm: str, against: str, attack: str) -> str:
    """What a single seed says."""
    runs = stored.summaries(study)
    found = [
        runs[title][0]["evaluation"][attack]["accuracy"]
        for title in (arm, against)
        if title in runs and attack in runs[title][0]["evaluation"]
    ]
    return f"{100 * (found[0] - found[1]):+.2f} points, one seed" if len(found) == 2 else ""


def verdict_on_steepness(study: str, arm: str) -> tuple[str, str, str]:
    """From the logarithm of late over early steepness, one number per seed."""
    ends = [thirds(rows, "gradient_l1") for rows in rows_of(study, arm)]
    ratios = [math.log(late / early) for early, late in ends]
    if not ratios:
        return NOT_MEASURED
    number = f"ratio {math.exp(statistics.mean(ratios)):.2f}"
    if len(ratios) < SEEDS:
        return OPEN, f"{number}, seeds: {len(ratios)}", study
    found = over_seeds(np.array(ratios))
    decision = decide("better", found, 0.0)
    span = f"{math.exp(found.low):.2f} to {math.exp(found.high):.2f}"
    return decision, f"{number} ({span}), {found.seeds} seeds", study


def verdict_on_times(claim: dict[str, Any], runs: list[str]) -> tuple[str, str, str]:
    sides = [run.split("/") for run in runs]
    times = [stored.spent_until(study, title, claim["threshold"]) for study, title in sides]
    if not times or not all(times):
        return NOT_MEASURED
    unit = " s" if all(stored.timed(study) for study, _ in sides) else " gradients per image"
    number = " against ".join(stored.reached(runs, unit) for runs in times)
    if claim["kind"] == "never":
        if any(t is not None for t in times[0]):
            # one counterexample is enough
            best = f"{100 * stored.highest(*sides[0]):.1f}%"
            said = number if None in times[0] else f"after {number}"
            decision, number = NOT_REPRODUCED, f"reached {said}, highest {best}"
        else:
            decision = CONFIRMED if len(times[0]) >= SEEDS else OPEN
    else:
        decision = decide_times(*times)
    counts = " and ".join(str(len(t)) for t in times)
    return decision, f"{number}, seeds: {counts}", sides[0][0]


def verdicts_table() -> str:
    """The claims that are measured."""
    stated, margin = claims()
    rows = []
    for claim in stated:
        decision, number, study = verdict(claim, margin)
        if not study:
            continue
        attack = attack_name(claim.get("attack", ""))
        attack = "norm of dl/dx" if claim["kind"] == "steeper" else attack
        answer = decision if claim["source"] == "paper" else ANSWERS[decision]
        rows.append([claim["text"], claim["source"], f"**{answer}**", number, attack, study])
    return markdown(
        ["claim or question", "source", "verdict", "difference", "under", "study"], rows
    )


def not_measured() -> str:
    """The other claims."""
    stated, margin = claims()
    left = [claim for claim in stated if not verdict(claim, margin)[2]]
    return "\n".join(f"- {claim['text']} ({claim['source']})" for claim in left)


def check() -> None:
    """Refuse a claim whose test names no study or arm."""
    for claim in claims()[0]:
        named = [(s, t) for s, *arms in claim.get("tests", []) for t in arms if t != "front"]
        named += [tuple(run.split("/")) for runs in claim.get("runs", []) for run in runs]
        named += [tuple(claim["arm"])] if "arm" in claim else []
        for study, title in named:
            assert title in STUDIES[study].recipes, f"{claim['text']}: {study} has no arm {title}"
