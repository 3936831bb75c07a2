"""Recipe files: where they are found, and how one extends another."""

import os
import re
import tomllib
from collections.abc import Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from amata.errors import InputError, nearest, quoted, shorten

Tables = dict[str, Any]

SIZE = 2**20
"""The largest recipe file, in bytes."""

TABLES = ("data", "model", "threat", "method", "schedule", "optim", "train", "eval")
"""The tables of a recipe, in the order in which they are written."""

KEYED = {"threat": "norm", "method": "name", "schedule": "name"}
"""Tables that describe an object, and the key that names its class."""


class Source(NamedTuple):
    """The text of a recipe. Paths in it are relative to `folder`."""

    name: str
    text: str
    path: str
    folder: Path


def built_in() -> dict[str, str]:
    """The text of each recipe that comes with the package, by name."""
    files = sorted(resources.files("amata.recipes").iterdir(), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text() for f in files if f.name.endswith(".toml")}


def read_recipe(recipe: str | Path | Mapping[str, Any]) -> tuple[Tables, str]:
    """The tables of a recipe, merged over those it extends, and its name."""
    if isinstance(recipe, Mapping):
        tables = {k: dict(v) if isinstance(v, Mapping) else v for k, v in recipe.items()}
        base = tables.pop("extends", None)
        if base is None:
            return tables, "recipe"
        below, name = read_recipe(base)
        return merge(below, tables), name
    if not isinstance(recipe, str | Path):
        raise InputError(
            f"recipe = {shorten(repr(recipe), 80)} must be the name of a recipe, a TOML file, a "
            "dict of tables or a Recipe"
        )
    return _read_file(recipe)


def _read_file(name_or_path: str | Path) -> tuple[Tables, str]:
    source = _find(str(name_or_path), Path())
    name, chain, tables = source.name, [source.path], []
    while True:
        own = read_toml(source.text, source.name, quote=len(chain) == 1)
        base = own.pop("extends", None)
        tables.append(own)
        if base is None:
            return reduce(merge, reversed(tables)), name
        if not isinstance(base, str):
            raise InputError(
                f"recipe {source.name}: extends = {base!r} must be a string: the name of a "
                "built-in recipe, or the path of a file"
            )
        try:
            source = _find(base, source.folder)
        except InputError as error:
            raise InputError(f"recipe {source.name}: extends = {base!r}: {error}") from None
        chain.append(source.path)
        if source.path in chain[:-1]:
            raise InputError(
                f"recipe {name}: extends forms a cycle, {' -> '.join(chain)}; remove one of them"
            )


def merge(base: Tables, own: Tables) -> Tables:
    """The tables of `own` over those of `base`, key by key.

    Naming another method, schedule or norm starts that table afresh: the base's keys belong to the
    other class.
    """
    merged = dict(base)
    for section, table in own.items():
        below, key = base.get(section), KEYED.get(section)
        merged[section] = table
        if isinstance(table, dict) and isinstance(below, dict):
            same = key not in table or table[key] == below.get(key)
            merged[section] = {**below, **table} if same else table
    return merged


def read_text(path: Path) -> str:
    """The text of a recipe file."""
    try:
        if path.stat().st_size > SIZE:
            raise InputError(f"recipe file {path} has more than {SIZE:,} bytes: it is not read")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"recipe file {path} is not a text file") from None
    except OSError as error:
        raise InputError(f"recipe file {path} cannot be read ({error.strerror})") from None


def read_toml(source: str, name: str, *, quote: bool = True) -> Tables:
    """The tables of a recipe's text. Without `quote`, an error says only where it is: another file
    named the text, which may be anything."""
    try:
        return tomllib.loads(source)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        place = re.search(r"at [\w ,]+(?=\)$)", str(error))
        reason = str(error) if quote else place[0] if place else "at one of its numbers"
        if quote and (line := re.search(r"at line (\d+)", str(error))):
            found = source.splitlines()[int(line[1]) - 1 :][:1]
            if found and (fraction := re.search(r"=\s*([\d.]+/[\d.]+)\s*(#|$)", found[0])):
                reason = f'line {line[1]}: write fractions in quotes, "{fraction[1]}"'
    raise InputError(f"recipe {name}: not valid TOML: {reason}")


def _find(text: str, folder: Path) -> Source:
    """A file by its path, seen from the folder, or a built-in recipe by its name."""
    path, is_path = folder / os.path.expanduser(text), text.endswith(".toml") or "/" in text
    file = resources.files("amata.recipes") / f"{text}.toml"
    if not is_path and file.is_file():
        return Source(text, file.read_text(), text, Path())
    if (path / "recipe.toml").is_file():
        raise InputError(
            f"{path} is a run folder: resume it with `amata train --resume {quoted(path)}`, "
            f"compare it with `amata report`, or use its recipe {path}/recipe.toml"
        )
    if path.is_dir():
        raise InputError(
            f"{path} is a folder, not a recipe: `amata init {quoted(path)}` writes one for a "
            "folder of images"
        )
    if not is_path:
        hint = nearest(text, built_in(), "`amata recipes` lists the built-in ones")
        if Path(text).suffix:
            hint = f"there is no file {path} either; {hint}"
        raise InputError(f"unknown recipe {text!r}; {hint}")
    if not path.is_file():
        raise InputError(f"no recipe file {path}; `amata recipes` lists the built-in ones")
    return Source(path.stem, read_text(path), str(path.resolve()), path.parent)
