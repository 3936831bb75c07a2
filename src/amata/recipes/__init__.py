"""Recipes: a training run as a TOML file, validated, with every default filled in and every error
named by its place."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amata.recipes.files import KEYED, built_in, read_recipe, read_text, read_toml
from amata.recipes.recipe import OPERATIONAL, Recipe

__all__ = ["KEYED", "OPERATIONAL", "Recipe", "built_in", "load", "parse", "read_text", "read_toml"]


def load(name_or_path: str | Path, overrides: Sequence[str] | str = ()) -> Recipe:
    """A built-in recipe by name, or a TOML file by path, with `table.key=value` overrides."""
    tables, name = read_recipe(name_or_path)
    return parse(tables, name, [overrides] if isinstance(overrides, str) else overrides)


def parse(raw: dict[str, Any], name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate the tables of a recipe and build what they describe."""
    from amata.recipes import tables  # imports torch, which listing recipes does not need

    return tables.parse(raw, name, overrides)
