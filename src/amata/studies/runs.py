"""The runs of a study: checked before the first one starts, trained once, resumed after an
interruption."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amata.data import Splits
from amata.errors import InputError, shorten
from amata.methods import planned_evals
from amata.metrics import EpochRow
from amata.recipes import Recipe
from amata.recipes.recorded import own_objects
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.files import refuse_links
from amata.schedules import Control, largest_control, planned_controls
from amata.studies.differences import which_images
from amata.training import Interrupted
from amata.training.described import changed_keys
from amata.training.device import resolve_device
from amata.training.evaluations import check_attacks
from amata.training.experiment import resume, train
from amata.training.setup import build_model, load_data
from amata.training.trust import remember

MAX_STEPS = 1_000
"""The largest K of a trained run that a study repeats."""


def check_runs(planned: Sequence[tuple[Path, Recipe]]) -> None:
    """Find the input errors of all runs before the first one trains: another recipe in a folder,
    device, attacks, data, networks. A finished run needs no data."""
    seen: set[str] = set()
    data: dict[str, tuple[dict[str, Any], Splits]] = {}
    for folder, recipe in planned:
        refuse_links(folder.parent, folder)
        if (folder / "recipe.toml").is_file():
            check_same_recipe(folder, recipe)
        else:
            RunFolder.check_free(folder)
        if RunFolder(folder).finished or recipe.name in seen:
            continue
        seen.add(recipe.name)
        resolve_device(recipe.train.device)
        check_attacks(recipe)
        # decoding all images is left to the training
        lazy = recipe.data.model_copy(update={"in_memory": False, "workers": 0})
        tables = which_images(recipe)
        key = json.dumps([tables, recipe.train.seed])
        if key not in data:  # recipes of a study mostly share their images
            data[key] = tables, load_data(replace(recipe, data=lazy))
        build_model(recipe, data[key][1].train, trust=True)  # the user named it
    for folder, recipe in planned:
        known = RunFolder(folder).split()
        for tables, splits in data.values():
            if which_images(recipe) == tables and any(
                known.get(key, value) != value for key, value in splits.hashes.items()
            ):
                raise InputError(
                    f"{folder} was trained on other images than there are now; restore them, or "
                    "choose another folder"
                )


def planned_cost(folder: Path, recipe: Recipe) -> float:
    """Gradient evaluations per image of a run that is still to be trained; 0 if it is finished. Of
    a method whose samples stop early, and of a closed-loop schedule, the most."""
    if RunFolder(folder).finished:
        return 0.0
    epochs = recipe.train.epochs
    planned = planned_controls(recipe.schedule, epochs)
    if planned is None:
        planned = [largest_control(recipe.schedule, epochs)] * epochs
    return sum(planned_evals(recipe.method, u, t).evals for t, u in enumerate(planned))


def row_control(row: EpochRow) -> Control[float]:
    """The control of an epoch, as its row records it."""
    tau, most = row.get("tau"), row.get("step_size_max")
    return Control(row["steps"], row["step_size"], tau, step_size_max=most)


def run_controls(run: RunFolder) -> dict[int, Control[float]]:
    """The control of every epoch; a rolled-back epoch counts with its last one. A study repeats
    them, so a row that asks for absurdly many steps is refused."""
    rows = run.epochs()
    if odd := next((row for row in rows if row["steps"] > MAX_STEPS), None):
        raise InputError(
            f"{run.metrics}: epoch {odd['epoch'] + 1} has K = {odd['steps']}, more than the "
            f"{MAX_STEPS:,} steps that a study repeats"
        )
    return {row["epoch"]: row_control(row) for row in rows}


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    known = RunFolder.open(folder)[1]
    if known.fingerprint() == recipe.fingerprint():
        return
    key, *values = next(changed_keys(recipe, known))
    there, here = (shorten(repr(value), 60) for value in values)
    raise InputError(
        f"{folder} holds another version of recipe {recipe.name}, with {key} = {there}, not "
        f"{here}; choose another folder"
    )


def train_or_resume(folder: Path, recipe: Recipe, reporter: Reporter, name: str = "") -> RunFolder:
    """The finished run of a recipe in this folder. An interrupt names the run, else the folder."""
    try:
        return _train_or_resume(folder, recipe, reporter)
    except Interrupted as interrupted:
        text = (
            f"interrupted in {name or folder.name}; progress is saved, repeat the command to resume"
        )
        raise Interrupted(text, interrupted.exit_code - 128) from None


def _train_or_resume(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
    if not (folder / "recipe.toml").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        return train(recipe, folder, reporter)
    check_same_recipe(folder, recipe)
    remember(recipe, reporter.note)  # it is the user's own, and equal to the one in the folder
    return resume(folder, reporter=reporter, own=recipe if own_objects(recipe) else None)
