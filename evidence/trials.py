"""Tuning trials: what is recorded of them, and whether a record belongs to a recipe."""

import json
from pathlib import Path
from typing import Any

from amata.errors import InputError
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.studies.runs import check_same_recipe
from amata.training.evaluations import evaluate_recipe
from amata.training.loaded import load_trained
from stored import read_rows


def held_out(run: RunFolder, attacks: list[str], reporter: Reporter) -> dict[str, Any]:
    """The accuracy of a run's last weights on its held-out images, its course where training was
    validated, and where it was trained."""
    model, recipe, splits = load_trained(run.path / "last.safetensors")
    assert splits.valid is not None
    results = evaluate_recipe(model, recipe, splits.valid, reporter, attacks)
    env, (rows, _) = run.environments()[-1], read_rows(run.path)
    return {
        "held_out": {attack: result.accuracy for attack, result in results.items()},
        "course": [(row["epoch"] + 1, row["valid"]) for row in rows if row.get("valid")],
        "images": len(splits.valid),
        "train_seconds": rows[-1]["train_seconds"],
        "data": splits.hashes,
        "commit": env.get("commit"),
        "device": env.get("device"),
    }


def check_recorded(place: Path, recipe: Recipe) -> None:
    """Refuse results of another recipe: the study was changed after its first run."""
    if place.suffix != ".json":
        check_same_recipe(place, recipe)
    elif json.loads(place.read_text())["fingerprint"] != recipe.fingerprint():
        raise InputError(f"{place} is a trial of another version of {recipe.name}; remove it")
