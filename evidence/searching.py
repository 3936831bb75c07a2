"""The search of a study: `amata search` on its recipe, before the first run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from amata import recipes
from amata.reporter import Reporter
from definition import SEARCH, Search


def search_schedule(
    search: Search, overrides: Sequence[str], work: Path, out: Path, reporter: Reporter
) -> Path:
    """Make all trials in a folder of `work`, from which an interrupted search continues. Stores
    search.json, and where the first trial was trained, in `out`."""
    from amata.studies import search as studies  # needs optuna

    base, sets = search.recipe
    recipe = recipes.load(base, [*sets, "train.tensorboard=false", *overrides], name=search.arm)
    settings = studies.SearchSettings(
        budget=search.budget, k_cap=search.k_max, trials=search.trials
    )
    folder, stored = (work / SEARCH).parent, (out / SEARCH).parent
    studies.Search(recipe, settings, folder, reporter).run()
    stored.mkdir(exist_ok=True)
    shutil.copy(next(folder.glob("trials/*/run/env.json")), stored)
    shutil.copy(work / SEARCH, stored)
    shutil.rmtree(folder)
    return out / SEARCH
