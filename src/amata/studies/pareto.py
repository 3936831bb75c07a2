"""What a search has found: its trials as rows, which of them no other beats in both cost and
accuracy, and the winner."""

from typing import Any

Row = dict[str, Any]


def told(trial: Any) -> Row:
    """A trial of an optuna study that has ended, as a row; only one that was trained to the end has
    a value."""
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
    """The rows, each with whether it lies on the Pareto front of those that are complete."""
    done = _complete(rows)
    front = [row for row in done if not any(_beats(other, row) for other in done)]
    return [{**row, "front": row in front} for row in rows]


def winner(rows: list[Row], *, highest: bool) -> Row | None:
    """The complete row with the highest value, or the lowest; of equals the cheapest."""
    sign = 1 if highest else -1
    return max(_complete(rows), key=lambda row: (sign * row["value"], -row["cost"]), default=None)


def _complete(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["state"] == "complete"]


def _beats(one: Row, other: Row) -> bool:
    """Whether a trial is at least as good as another in cost and accuracy, and better in one of
    them."""
    at_least = one["cost"] <= other["cost"] and one["accuracy"] >= other["accuracy"]
    return at_least and (one["cost"], one["accuracy"]) != (other["cost"], other["accuracy"])
