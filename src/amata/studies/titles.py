"""The titles of recipes in a comparison: their names, and what differs where names are equal."""

import json
from collections.abc import Sequence
from typing import Any

from amata.errors import InputError, shorten
from amata.formatting import to_text
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.studies.differences import NEUTRAL

LONGEST = 24
"""Characters of a value in a title."""


def recipe_titles(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """The title of each run's recipe. Runs that differ only in the seed share one; runs whose code
    the user has edited in between do not."""
    seen: dict[tuple[str, int], str] = {}
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    keys = []
    for run, recipe in opened:
        tables = recipe.deciding() | ({"code": code} if (code := run.code()) else {})
        key = json.dumps(
            {**tables, "train": {k: v for k, v in tables["train"].items() if k != "seed"}},
            sort_keys=True,
        )
        if (key, recipe.train.seed) in seen:
            raise InputError(
                f"{seen[key, recipe.train.seed]} and {run.path} are the same recipe with the "
                "same seed; pass only one of them"
            )
        seen[key, recipe.train.seed] = str(run.path)
        keys.append(key)
        by_name.setdefault(recipe.name, {}).setdefault(key, _flat(tables))
    titles = {
        (name, key): title
        for name, variants in by_name.items()
        for key, title in zip(variants, _variants(name, list(variants.values())), strict=True)
    }
    return [titles[recipe.name, key] for (_, recipe), key in zip(opened, keys, strict=True)]


def _flat(tables: dict[str, Any]) -> dict[str, Any]:
    """All keys with their values. A user-defined object is called as its class."""
    found = {f"{section}.{k}": v for section, table in tables.items() for k, v in table.items()}
    for section, table in tables.items():
        if "class" in table:
            found[f"{section}.name"] = str(found.pop(f"{section}.class")).rpartition(".")[2]
    return found


def _variants(name: str, variants: list[dict[str, Any]]) -> list[str]:
    """A title for each recipe of this name: with the fewest keys, in the recipe's order, that tell
    all of them apart."""
    chosen: list[str] = []

    def told_apart(keys: list[str]) -> int:
        return len({tuple(_value(v.get(key)) for key in keys) for v in variants})

    # keys that all of them have come first: their values say more than a missing key
    keys = [key for key in dict.fromkeys(k for v in variants for k in v) if key not in NEUTRAL]
    for key in sorted(keys, key=lambda key: not all(key in v for v in variants)):
        if told_apart([*chosen, key]) > max(told_apart(chosen), 1):
            chosen.append(key)
    chosen = [k for k in chosen if told_apart([o for o in chosen if o != k]) < told_apart(chosen)]
    titles = [
        f"{name} ({', '.join(f'{key}={_value(v.get(key))}' for key in chosen)})" if chosen else name
        for v in variants
    ]
    if len(set(titles)) == len(titles):
        return titles
    return [f"{title} #{index}" for index, title in enumerate(titles, 1)]


def _value(value: Any) -> str:
    text = "none" if value is None else "[]" if value == [] else to_text(value)
    return shorten(text, LONGEST)
