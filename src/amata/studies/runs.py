"""The runs of a study: trained once, resumed after an interruption."""

from pathlib import Path

from amata.errors import InputError
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.training import Interrupted
from amata.training.experiment import resume, train
from amata.training.trust import remember


def train_or_resume(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
    """The finished run of a recipe in this folder."""
    try:
        return _train_or_resume(folder, recipe, reporter)
    except Interrupted as interrupted:
        text = f"interrupted in {folder.name}; progress is saved, repeat the command to resume"
        raise Interrupted(text, interrupted.exit_code - 128) from None


def _train_or_resume(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
    if not (folder / "recipe.toml").is_file():
        reporter.note(f"training {folder.name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return train(recipe, folder, reporter)
    if RunFolder.open(folder)[1].fingerprint() != recipe.fingerprint():
        raise InputError(
            f"{folder} holds another version of recipe {recipe.name}; choose another --out"
        )
    remember(recipe, reporter.note)  # it is the user's own, and equal to the one in the folder
    return resume(folder, reporter=reporter)
