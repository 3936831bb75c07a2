"""Runs that a study is made of: trained where they do not exist yet, taken up where an earlier call
left them."""

from pathlib import Path

from amata.errors import InputError
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.training import Interrupted
from amata.training.experiment import resume, train


def train_or_resume(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
    """The finished run of a recipe in this folder."""
    try:
        return _taken_up(folder, recipe, reporter)
    except Interrupted as interrupted:
        text = (
            f"interrupted in {folder.name}; what it did is saved, and the same command goes on "
            "from there"
        )
        raise Interrupted(text, interrupted.exit_code - 128) from None


def _taken_up(folder: Path, recipe: Recipe, reporter: Reporter) -> RunFolder:
    if not (folder / "recipe.toml").is_file():
        reporter.note(f"training {folder.name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return train(recipe, folder, reporter)
    if RunFolder.open(folder)[1].fingerprint() != recipe.fingerprint():
        raise InputError(
            f"{folder} was trained by another version of recipe {recipe.name}; choose another --out"
        )
    return resume(folder, reporter=reporter)
