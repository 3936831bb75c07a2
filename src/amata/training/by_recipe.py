"""amata.train: a whole run by recipe, in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amata import recipes
from amata.errors import InputError
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.training import experiment
from amata.training.wall import WallClock
from amata.training.within import read_within


def train(
    recipe: Recipe | str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    epochs: int | None = None,
    within: float | str | None = None,
    resume: str | Path | None = None,
    progress: bool | Reporter | Sequence[bool | Reporter] = True,
    trust: bool = False,
    **tables: Any,
) -> RunFolder:
    """Train and evaluate as `amata train` does: `train("mnist5k-amata", "runs/mine", epochs=5)`.

    `recipe` is the name of a built-in recipe, a TOML file, a dict of tables or a `Recipe`; `out` a
    new folder. Keyword arguments change keys of the recipe's tables, as in `optim={"lr": 0.01}`.
    `epochs` stretches the recipe, as in `recipes.load`. `within` is a time, in seconds or as in
    "5m", from this call to the trained model: epochs and schedule are chosen to fill it.
    `train(resume=FOLDER)` resumes an interrupted run; with `trust` it runs code that the folder's
    recipe names. If method or schedule were made in Python, it needs the `Recipe` that has them:
    `train(recipe, resume=FOLDER)`. The returned run has `path`, `epochs()` and `summary()`.
    """
    wall = WallClock()
    from amata.console import reporting  # imports rich, which `import amata` does not need

    own = recipe if isinstance(recipe, Recipe) else None
    if recipe is None and resume is None:
        raise InputError("train(): pass either a recipe or resume=FOLDER")
    if resume is not None and recipe is not own:
        raise InputError("train(): resume= takes the recipe from the run; drop yours")
    for name, value in (("out", out), ("resume", resume)):
        if value is not None and not isinstance(value, str | Path):
            raise InputError(f"train(): {name} = {value!r} must be a folder")
    if resume is not None:
        if out is not None or tables or (epochs, within) != (None, None):
            raise InputError(
                "train(): resume= takes settings and folder from the run; drop out=, epochs=, "
                "within= and tables"
            )
        with reporting(progress, "train()") as reporter:
            return experiment.resume(
                Path(resume).expanduser(), (), reporter, own=own, trust=trust, wall=wall
            )
    if out is None:
        raise InputError("train(): out= is needed: a new folder for the run")
    time = read_within(within, recipes.as_pairs(tables), epochs)
    assert recipe is not None
    chosen = recipes.load(recipe, epochs=epochs, **tables)
    with reporting(progress, "train()") as reporter:
        return experiment.train(chosen, Path(out).expanduser(), reporter, wall=wall, within=time)
