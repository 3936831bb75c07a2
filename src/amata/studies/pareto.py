"""The trials of a search as rows, their Pareto front of cost and accuracy, and the winner."""

import math
from typing import Any

Row = dict[str, Any]


def to_row(trial: Any) -> Row:
    """A finished optuna trial as a row; a pruned one has no value."""
    attrs = trial.user_attrs
    state = trial.state.name.lower()
    return {
        "number": trial.number,
        "state": state,
        "value": trial.value if state == "complete" else None,
        "accuracy": attrs["accuracy"],
        "cost": attrs["cost"],
        "grad_evals": attrs.get("grad_evals"),
        "schedule": attrs["schedule"],
        "key": attrs["key"],
        "epochs_trained": len(trial.intermediate_values),
    }


def with_front(rows: list[Row]) -> list[Row]:
    """The rows with `front`: whether the row is on the Pareto front of the complete trials."""
    done = _complete(rows)
    front = [row for row in done if not any(_dominates(other, row) for other in done)]
    return [{**row, "front": row in front} for row in rows]


def winner(rows: list[Row], *, highest: bool, budget: float = math.inf) -> Row | None:
    """The complete row with the highest value, or the lowest; ties go to the lower cost. A row over
    the budget wins only if all are."""
    sign, done = 1 if highest else -1, _complete(rows)
    within = [row for row in done if row["cost"] <= budget + 1e-9]
    return max(within or done, key=lambda row: (sign * row["value"], -row["cost"]), default=None)


def _complete(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["state"] == "complete"]


def _dominates(one: Row, other: Row) -> bool:
    """Whether a trial is as good in cost and accuracy, and better in one of them."""
    at_least = one["cost"] <= other["cost"] and one["accuracy"] >= other["accuracy"]
    return at_least and (one["cost"], one["accuracy"]) != (other["cost"], other["accuracy"])
