"""The differences that a study tests, from the stored outcomes of its runs."""

from functools import cache
from itertools import pairwise

import numpy as np

import stored
from amata.evaluation.result import unpack
from amata.studies.intervals import Estimate, Values, over_seeds, over_seeds_and_images
from definition import FRONT, Test
from study import STUDIES

COLLAPSED = 0.8
"""A run below this share of the best arm's accuracy has collapsed."""
Outcomes = dict[str, Values]
"""By seed, 100 for every image that was right, else 0; or the accuracy alone, where outcomes were
not kept."""


def outcomes(study: str, title: str, attack: str) -> Outcomes:
    found = {}
    for run in stored.runs_of(study, title):
        result = stored.summary(run)["evaluation"].get(attack)
        if result is None:
            continue
        bits = result.get("outcomes")
        right = unpack(bits, result["n"]) if bits else [result["accuracy"]]
        found[run.name.removeprefix(f"{title}-")] = 100 * np.asarray(right, dtype=float)
    return found


def main_attack(study: str) -> str:
    """The attack of the picture, and of what is called collapsed."""
    return next(attack for attack in STUDIES[study].attacks if attack != "clean")


@cache
def collapsed(study: str) -> dict[str, list[str]]:
    """The seeds of every arm that collapsed."""
    found = {t: outcomes(study, t, main_attack(study)) for t in stored.summaries(study)}
    means = {t: {s: float(v.mean()) for s, v in runs.items()} for t, runs in found.items()}
    best = max(sum(own.values()) / len(own) for own in means.values() if own)
    return {t: [s for s, v in own.items() if v < COLLAPSED * best] for t, own in means.items()}


def weights(study: str, test: Test) -> dict[str, float] | None:
    """The contrast of a test: the share of every arm in the difference. None if the arm is missing,
    or has no constants on either side."""
    runs = stored.summaries(study)
    if test.against != FRONT:
        arms = {test.arm: 1.0, test.against: -1.0}
        return arms if set(arms) <= set(runs) else None
    if test.arm not in runs:
        return None
    cost = stored.total_cost(runs[test.arm])
    constants = sorted(
        (stored.total_cost(runs[title]), title) for title in STUDIES[study].front if title in runs
    )
    for (low, below), (high, above) in pairwise(constants):
        if low <= cost <= high:
            share = (cost - low) / (high - low)
            return {test.arm: 1.0, below: share - 1, above: -share}
    return None


def difference(study: str, test: Test, attack: str) -> Estimate | None:
    """The test's difference in points over the seeds that all its arms have; None without two such
    seeds."""
    parts = weights(study, test)
    if parts is None:
        return None
    found = {title: outcomes(study, title, attack) for title in parts}
    seeds = sorted(set.intersection(*(set(runs) for runs in found.values())))
    if len(seeds) < 2:
        return None
    sizes = {len(runs[seed]) for runs in found.values() for seed in seeds}
    if len(sizes) > 1 or sizes == {1}:  # of some runs the accuracy alone is known
        means = {t: np.array([runs[s].mean() for s in seeds]) for t, runs in found.items()}
        return over_seeds(sum(w * means[t] for t, w in parts.items()))  # type: ignore[arg-type]
    tables = {t: np.stack([runs[s] for s in seeds]) for t, runs in found.items()}
    return over_seeds_and_images(sum(w * tables[t] for t, w in parts.items()))  # type: ignore[arg-type]
