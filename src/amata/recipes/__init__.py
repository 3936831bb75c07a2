"""Recipes: a training run as a TOML file, validated, with every default filled in and every error
named by its place."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amata.errors import InputError, shorten, unknown
from amata.imports import imported, is_import_path
from amata.recipes.files import KEYED, TABLES, built_in, read_recipe, read_text, read_toml
from amata.recipes.overrides import Overrides, Pair, as_pairs
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
    recipe: Recipe | str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    name: str | None = None,
    epochs: int | None = None,
    **tables: Any,
) -> Recipe:
    """A recipe: built-in by name, a TOML file by path, or a dict of tables, which may extend one.
    A `Recipe` is changed: its method and schedule may be of your own classes, and then stay. The
    import path of a `Recipe`, "package.module:name", imports that module.

    Overrides are texts as for --set, or a dict; keyword arguments are tables:

    >>> load("mnist5k-amata", {"train.epochs": 5}, optim={"lr": "1/50"}).optim.lr
    0.02

    `epochs` stretches the recipe: what it counts in epochs, such as the milestones of the learning
    rate, keeps its share of a shorter run. In a longer one milestones keep their distance from the
    end. Overrides stay as they are.

    >>> load("cifar10-amata").optim.milestones, load("cifar10-amata", epochs=10).optim.milestones
    ([75.0, 90.0], [7.5, 9.0])
    """
    if isinstance(recipe, str) and is_import_path(recipe):
        recipe = _imported(recipe)
    found, known = ({}, recipe.name) if isinstance(recipe, Recipe) else read_recipe(recipe)
    for section, table in tables.items():
        if section not in TABLES:
            raise InputError(f"recipe {known}: {_no_table(section)}")
        if not isinstance(table, Mapping):
            raise InputError(
                f"recipe {known}: {section} = {shorten(repr(table), 80)} must be a dict of keys; "
                f"for an object use dataclasses.replace(recipe, {section}=...)"
            )
    pairs = [*as_pairs(overrides), *as_pairs(tables)]
    if isinstance(recipe, Recipe):
        return _changed(recipe, name or known, epochs, pairs)
    loaded = parse(found, name or known, pairs)
    return loaded if epochs is None else _stretched(loaded, epochs, pairs)


def _imported(path: str) -> Recipe:
    what = f"recipe {path}"
    found = imported(path, what)
    if not isinstance(found, Recipe):
        raise InputError(
            f"{what} is {type(found).__name__}, not an amata.Recipe; make one of another, as in "
            'dataclasses.replace(amata.recipes.load("mnist5k-amata", name="own"), method=...)'
        )
    return found


def _changed(recipe: Recipe, name: str, epochs: int | None, pairs: Sequence[Pair]) -> Recipe:
    from amata.methods import Method
    from amata.recipes.length import stretched
    from amata.recipes.recorded import own_objects, rebuilt

    if not isinstance(recipe.method, Method):
        what = shorten(repr(recipe.method), 80)
        raise InputError(
            f"recipe {name}: method = {what} must be a method, as amata.PGD(ball=ball)"
        )
    named = replace(recipe, name=name)
    if not pairs:
        return named if epochs is None else stretched(named, epochs)
    for section in own_objects(recipe):
        if any(path.partition(".")[0] == section for path, _ in pairs):
            raise InputError(
                f"the {section} of recipe {name} was made in Python; change it there, with "
                f"dataclasses.replace, not by {section}="
            )
    changed = parse(recipe.tables, name, pairs)
    return rebuilt(changed if epochs is None else _stretched(changed, epochs, pairs), recipe)


def _no_table(name: str) -> str:
    """What is wrong with the name of a table; it may be a key of one."""
    from amata.recipes.schema import STATIC

    for table, fields in STATIC.items():
        if name in fields.model_fields:
            return f"{name} is a key of the table {table}; write {table}={{{name!r}: ...}}"
    return str(unknown("table", name, TABLES))


def _stretched(recipe: Recipe, epochs: int, pairs: Sequence[Pair]) -> Recipe:
    from amata.recipes.length import stretched

    if any(path == "train.epochs" for path, _ in pairs):
        raise InputError("the epochs are given twice; drop train.epochs or --epochs (epochs=)")
    found = stretched(recipe, epochs)
    return parse(found.tables, recipe.name, pairs)


def parse(raw: dict[str, Any], name: str, overrides: Overrides = ()) -> Recipe:
    """Validate the tables of a recipe and build what they describe."""
    from amata.recipes import tables  # imports torch, which listing recipes does not need

    return tables.parse(raw, name, as_pairs(overrides))
