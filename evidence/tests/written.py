"""Stored runs, written by hand."""

import json
from pathlib import Path

EPOCH = dict.fromkeys(("step_size", "loss", "train_seconds", "grad_evals_per_image", "lr"), 0.1)
EVENT = {"action": "stop", "before": 0.5, "after": 0.1}


def write_run(folder: Path, rows: list[dict[str, object]], **summary: object) -> None:
    """The small files of a run, with what the test does not need filled in."""
    folder.mkdir(parents=True)
    epochs = iter(range(len(rows)))
    whole = [
        {**EVENT, **row}
        if "event" in row
        else {**EPOCH, "epoch": next(epochs), "steps": 1, "grad_evals": 1, **row}
        for row in rows
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole))
    basic = {"recipe": "r", "epochs": next(epochs, len(rows)), "train_seconds": 1, "grad_evals": 1}
    more: dict[str, object] = {"grad_evals_per_image": 1, "best_epoch": None, "evaluation": {}}
    (folder / "summary.json").write_text(json.dumps({**basic, **more, **summary}))
