"""Recipes: a training run as a TOML file, validated, with every default filled in and every error
named by its place."""

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from amata.errors import InputError, unknown
from amata.recipes.recipe import KEYED, OPERATIONAL, Recipe

__all__ = ["KEYED", "OPERATIONAL", "Recipe", "built_in", "load", "parse", "read_toml"]


def built_in() -> dict[str, str]:
    """The text of each recipe that comes with the package, by name."""
    files = sorted(resources.files(__name__).iterdir(), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text() for f in files if f.name.endswith(".toml")}


def load(name_or_path: str | Path, overrides: Sequence[str] | str = ()) -> Recipe:
    """A built-in recipe by name, or a TOML file by path, with `table.key=value` overrides."""
    text = str(name_or_path)
    overrides = [overrides] if isinstance(overrides, str) else overrides
    if text.endswith(".toml") or "/" in text:
        path = Path(text)
        if (path / "recipe.toml").is_file():
            raise InputError(
                f"{path} is a run folder: `amata train --resume {path}` goes on with it, and "
                f"{path}/recipe.toml is its recipe"
            )
        if not path.is_file():
            raise InputError(f"no recipe file {path}; `amata recipes` lists the built-in ones")
        source, name = path.read_text(), path.stem
    else:
        recipes = built_in()
        if text not in recipes:
            raise unknown("recipe", text, recipes)
        source, name = recipes[text], text
    return parse(read_toml(source, name), name, overrides)


def read_toml(source: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"recipe {name}: not valid TOML: {error}") from None


def parse(raw: dict[str, Any], name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate the tables of a recipe and build what they describe."""
    from amata.recipes import tables  # imports torch, which listing recipes does not need

    return tables.parse(raw, name, overrides)
