"""A trained network on the disk: its recipe, its weights, the names of its classes and the shape of
its images. Reading this runs no code and needs no data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amata import recipes
from amata.errors import InputError, quoted, shorten
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.runs import RunFolder
from amata.runs.files import check_type, describe_weights, read_record
from amata.runs.records import EXPORTED, SIZES
from amata.training.trust import review

Shape = tuple[int, int, int]
Note = Callable[[str], None]
EXPORTS = ("model.safetensors", "weights.pt")
"""The weights of an exported folder: for the Hugging Face Hub, for RobustBench."""


@dataclass(frozen=True)
class Stored:
    """What a run folder, a weights file or an exported folder says of its network."""

    path: Path
    source: Path
    """The file that holds the recipe."""
    weights: Path
    original: Recipe | None
    """The recipe as it is stored; None if the user passed another one."""
    recipe: Recipe
    """The recipe with the user's overrides. The weights replace its initial ones."""
    overrides: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    """Of the classes; None if they were not recorded."""
    shape: Shape | None = None
    """Channels, height and width of an image; None if it was not recorded."""
    run: RunFolder | None = None

    @classmethod
    def find(
        cls, path: Path, overrides: tuple[str, ...] = (), recipe: str | Path | None = None
    ) -> "Stored":
        """What is stored at `path`. `recipe` is for a weights file that names none."""
        run = given = None
        if path.suffix == ".onnx" or (path.is_dir() and (path / "model.onnx").is_file()):
            raise InputError(
                f"{path} is for ONNX Runtime; pass the run folder or the safetensors export"
            )
        if path.is_dir() and not _is_export(path):
            run, original = RunFolder.open(path)
            source, weights = path / "recipe.toml", path / "model.safetensors"
            about = run.split()
            if "classes" not in about and weights.is_file():
                about = describe_weights(weights)
        elif path.is_dir():
            source, weights, about = path / "config.json", *_exported(path)
            original = _recipe_in(about, source)
        elif path.is_file():
            source, weights, about = path, path, _described(path)
            given = None if recipe is None else recipes.load(recipe, overrides)
            original = given or _recipe_in(about, path)
        else:
            raise InputError(
                f"no run folder or weights file at {path}; pass a folder that `amata train` wrote, "
                "or a weights file"
            )
        check_type(SIZES, about, source)
        chosen = given or recipes.parse(original.tables, original.name, overrides)
        return cls(
            path,
            source,
            weights,
            None if given else original,
            replace(
                chosen, model=chosen.model.model_copy(update={"weights": None, "new_head": False})
            ),
            overrides,
            tuple(about["classes"]) if "classes" in about else None,
            tuple(about["shape"]) if "shape" in about else None,
            run,
        )

    def review(self, note: Note, *, trust: bool, reads_data: bool) -> None:
        """Refuse code of a stranger, and report the folder that data will be read from."""
        if self.original is not None:
            recipe = self.recipe
            if not reads_data:
                recipe = replace(recipe, data=recipe.data.model_copy(update={"root": None}))
            review(
                recipe,
                self.source,
                note,
                stored=self.original,
                given=self.overrides,
                trust=trust,
            )

    def check_weights(self) -> None:
        """Refuse a run that has no best weights yet."""
        if self.run is None or self.weights.is_file():
            return
        again = (
            "its weights were not kept"
            if self.run.finished
            else f"`amata train --resume {quoted(self.path)}` trains until there is one"
        )
        raise InputError(f"{self.path} has no model.safetensors; {again}")

    def refuse_python(self, instead: str) -> None:
        """Refuse a run made in Python: nothing on the disk can build its network."""
        if isinstance(self.recipe.data, PythonData):
            raise InputError(
                f"{self.path} was trained in Python, on its own data and model: {instead}"
            )


def _is_export(folder: Path) -> bool:
    return (folder / "config.json").is_file() and not (folder / "recipe.toml").is_file()


def _described(path: Path) -> dict[str, Any]:
    """The header of a weights file; empty for a file of another program."""
    return describe_weights(path) if path.suffix == ".safetensors" else {}


def _recipe_in(about: dict[str, Any], path: Path) -> Recipe:
    """The recipe in the header of a weights file, or in the config.json of an exported folder."""
    tables, name = about.get("tables"), about.get("recipe")
    if path.suffix == ".toml":
        raise InputError(f"{path} is a recipe; pass the run folder that `amata train` wrote")
    if not isinstance(tables, dict) or not isinstance(name, str):
        raise InputError(
            f"{path} does not say which model and data it belongs to; add --recipe NAME_OR_FILE "
            "(in Python, recipe=; into a network of your own: amata.models.load_weights)"
        )
    return recipes.parse(tables, shorten(name))


def _exported(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The weights of an exported folder, and its config.json as the header of weights has it.
    Its architecture.py is a stranger's code, and is not used."""
    file = folder / "config.json"
    config = read_record(file, EXPORTED, hint="load a folder that `amata export` wrote")
    labels = config["id2label"]
    if set(labels) != {str(number) for number in range(len(labels))}:
        raise InputError(f"{file}: the keys of id2label are not 0, 1, ...; export the run again")
    weights = next((folder / name for name in EXPORTS if (folder / name).is_file()), None)
    if weights is None:
        raise InputError(f"{folder} has no {' or '.join(EXPORTS)}; export the run again")
    names = [labels[str(number)] for number in range(len(labels))]
    about = {"recipe": config["name"], "tables": config["recipe"]}
    return weights, {**about, "classes": names, "shape": config["shape"]}
