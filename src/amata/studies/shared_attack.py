"""Compare recipes under one attack: the strongest one that all of them share, and the differences
to the baseline under it."""

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def compare_under_one_attack(
    rows: Sequence[Row], *, same_images: bool
) -> tuple[Row | None, str | None]:
    """The attack, and a `difference` in every row, None for the baseline; or None and the reason.

    Test accuracies are preferred to held-out accuracies.
    """
    for row in rows:
        row["difference"] = None
    if not same_images:
        return None, "the runs have different test images"
    attack = next(filter(None, (_strongest(rows, split) for split in ("test", "held-out"))), None)
    if attack is None:
        return None, "the runs share no attack with the same parameters and number of images"
    baseline = rows[0]["accuracies"][attack]
    for row in rows[1:]:
        row["difference"] = difference(row["accuracies"][attack], baseline)
    found = {key: baseline[key] for key in ("split", "params", "n")}
    return {"attack": attack, **found}, None


def difference(one: Row, other: Row) -> dict[str, float]:
    """one - other with a 95% interval, from the intervals of both (Newcombe 1998, method 10).

    It treats the two as independent. On the same test images they are not, and the interval is
    wider than it had to be.
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
    return one is not None and _tested(one) == _tested(other)


def _tested(accuracy: Row) -> Row:
    """What must be equal; tf32 or fp32 is left out: it changes an image in thousands at most."""
    params = {key: v for key, v in accuracy["params"].items() if key != "precision"}
    return {"split": accuracy["split"], "n": accuracy["n"], **params}
