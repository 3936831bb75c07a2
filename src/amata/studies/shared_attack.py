"""Compare recipes under one attack: the strongest one that all of them share, and the differences
to the baseline under it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amata.studies.comparison_rows import tested
from amata.studies.intervals import Z975, over_images, over_seeds, over_seeds_and_images

Row = dict[str, Any]
Flags = npt.NDArray[np.bool_]
Outcomes = Callable[[str, str], Mapping[int, Flags] | None]
"""Of a recipe under an attack: by seed, which images were right; None if that was not stored."""


def compare_under_one_attack(
    rows: Sequence[Row], *, same_images: bool, outcomes: Outcomes = lambda recipe, attack: None
) -> tuple[Row | None, str | None]:
    """The attack, and a `difference` in every row, None for the baseline; or None and the reason.

    Test accuracies are preferred to held-out accuracies. Differences are paired by seed and image,
    if all recipes have the same seeds and the outcomes of all images are known.
    """
    for row in rows:
        row["difference"] = None
    if not same_images:
        return None, "the runs have different test images"
    attack = next(filter(None, (_strongest(rows, split) for split in ("test", "held-out"))), None)
    if attack is None:
        return None, "the runs share no attack with the same parameters and number of images"
    baseline = rows[0]["accuracies"][attack]
    tables = _tables(rows, attack, outcomes)
    for i, row in enumerate(rows[1:], start=1):
        row["difference"] = (
            difference(row["accuracies"][attack], baseline)
            if tables is None
            else paired_difference(tables[i], tables[0])
        )
    found = {key: baseline[key] for key in ("split", "params", "n")}
    return {"attack": attack, "paired": tables is not None, **found}, None


def _tables(rows: Sequence[Row], attack: str, outcomes: Outcomes) -> list[Flags] | None:
    """For each recipe, seeds by images: whether the image was right."""
    seeds = {tuple(sorted(row["seeds"])) for row in rows}
    if len(seeds) > 1 and any(len(of_recipe) > 1 for of_recipe in seeds):
        return None
    found = [outcomes(row["recipe"], attack) for row in rows]
    known = [of_recipe for of_recipe in found if of_recipe is not None]
    if len(known) < len(found):
        return None
    return [np.stack([of[seed] for seed in sorted(of)]) for of in known]


def paired_difference(one: Flags, other: Flags) -> dict[str, float]:
    """one - other with a 95% interval, from the outcomes of the same images. With several seeds it
    holds which of them were trained, too."""
    values = one.astype(float) - other.astype(float)
    seeds, images = values.shape
    mean = float(values.mean())
    if seeds == 1:
        low, high = over_images(values[0])
        return {"accuracy": mean, "low": low, "high": high}
    half = (over_seeds_and_images(values) if images > 1 else over_seeds(values[:, 0])).half
    half = max(half, Z975 / (images + 2))  # the least of over_images: few images are not certain
    return {"accuracy": mean, "low": max(-1.0, mean - half), "high": min(1.0, mean + half)}


def difference(one: Row, other: Row) -> dict[str, float]:
    """one - other with a 95% interval, from the intervals of both (Newcombe 1998, method 10).

    For accuracies of which the outcomes are not known. It treats the two as independent. On the
    same test images they are not, and the interval is wider than it had to be.
    """
    value = one["accuracy"] - other["accuracy"]
    below = math.hypot(one["accuracy"] - one["low"], other["high"] - other["accuracy"])
    above = math.hypot(one["high"] - one["accuracy"], other["accuracy"] - other["low"])
    return {"accuracy": value, "low": max(-1.0, value - below), "high": min(1.0, value + above)}


def _strongest(rows: Sequence[Row], split: str) -> str | None:
    """The attack inside the ball with the lowest mean accuracy, among those that all rows share."""
    first = rows[0]["accuracies"]
    shared = [
        name
        for name, a in first.items()
        if a["split"] == split and "eps" in a["params"]
        if all(_same(row["accuracies"].get(name), a) for row in rows)
    ]
    return min(
        shared,
        key=lambda name: sum(row["accuracies"][name]["accuracy"] for row in rows),
        default=None,
    )


def _same(one: Row | None, other: Row) -> bool:
    return one is not None and one["alike"] and tested(one) == tested(other)
