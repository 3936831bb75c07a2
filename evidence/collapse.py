"""Writes the example of docs/collapse.md: python evidence/collapse.py (--check compares it)."""

import stored
from definition import RESULTS, ROOT
from page import refuse_others, rewrite


def guard() -> str:
    """A run of cifar10-eps16 that collapsed, and the same recipe again, with a guard that watches
    long steps: `amata train RECIPE` with the run's recipe.toml."""
    before = stored.summary(RESULTS / "cifar10-eps16" / "runs" / "k2-seed0")
    run = ROOT / "evidence" / "results" / "guard"
    epochs, (event,) = stored.read_rows(run)
    (steps,) = {row["steps"] for row in epochs if row["epoch"] >= event["epoch"]}
    was, now = (
        f"{100 * stored.mean_accuracy([found], 'pgd-20'):.1f}%"
        for found in (before, stored.summary(run))
    )
    return (
        f"Two steps of 13/255 at ε = 16/255, seed 0: {was} under PGD-20 before the guard watched "
        f"long steps, {now} since. It undid epoch {event['epoch'] + 1}, and the rest took {steps} "
        "steps."
    )


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    rewrite({ROOT / "docs" / "collapse.md": {"guard": guard}}, "collapse")
