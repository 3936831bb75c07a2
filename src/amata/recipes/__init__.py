"""Recipes: a training run as a TOML file, validated, with every default filled in and every error
named by its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amata.errors import InputError, shorten, unknown
from amata.recipes.files import KEYED, TABLES, built_in, read_recipe, read_text, read_toml
from amata.recipes.overrides import Overrides, as_pairs
from amata.recipes.recipe import OPERATIONAL, Recipe

__all__ = [
    "KEYED",
    "OPERATIONAL",
    "Recipe",
    "as_pairs",
    "built_in",
    "load",
    "parse",
    "read_text",
    "read_toml",
]


def load(
    recipe: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    name: str | None = None,
    **tables: Any,
) -> Recipe:
    """A recipe: built-in by name, a TOML file by path, or a dict of tables, which may extend one.

    Overrides are texts as for --set, or a dict; keyword arguments are tables:

    >>> load("mnist5k-amata", {"train.epochs": 5}, optim={"lr": "1/50"}).optim.lr
    0.02
    """
    found, known = read_recipe(recipe)
    for section, table in tables.items():
        if section not in TABLES:
            raise InputError(f"recipe {known}: {unknown('table', section, TABLES)}")
        if not isinstance(table, Mapping):
            raise InputError(
                f"recipe {known}: {section} = {shorten(repr(table), 80)} must be a dict of keys; "
                f"for an object use dataclasses.replace(recipe, {section}=...)"
            )
    return parse(found, name or known, [*as_pairs(overrides), *as_pairs(tables)])


def parse(raw: dict[str, Any], name: str, overrides: Overrides = ()) -> Recipe:
    """Validate the tables of a recipe and build what they describe."""
    from amata.recipes import tables  # imports torch, which listing recipes does not need

    return tables.parse(raw, name, as_pairs(overrides))
