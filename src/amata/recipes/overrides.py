"""Overrides of a recipe's keys: texts as for --set, or dicts, as (path, value) pairs."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amata.errors import InputError, shorten
from amata.recipes.files import KEYED
from amata.recipes.schema import STATIC

Pair = tuple[str, Any]
"""A path `table.key` and its value."""
Overrides = Sequence[str | Pair] | str | Mapping[str, Any]


def as_pairs(overrides: Any) -> list[Pair]:
    """The overrides one by one. A dict has paths or nested dicts as keys and values of any kind."""
    if isinstance(overrides, str):
        return [_parsed(overrides)]
    if isinstance(overrides, Mapping):
        return [pair for key, value in overrides.items() for pair in _flat(key, value)]
    if not isinstance(overrides, Sequence):
        raise InputError(
            f"overrides = {shorten(repr(overrides), 80)} must be a dict, or texts as in "
            "'optim.lr=0.1'"
        )
    return [item if _is_pair(item) else _parsed(item) for item in overrides]


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _flat(key: Any, value: Any) -> list[Pair]:
    """A table becomes its keys; a dict within it, such as model.args, is a value."""
    if not isinstance(key, str):
        raise InputError(f"override {key!r} must be a text, as in 'optim.lr'")
    if "." in key or not isinstance(value, Mapping):
        return [(key, _plain(value))]
    return [(f"{key}.{inner}", _plain(v)) for inner, v in value.items()]


def _plain(value: Any) -> Any:
    """As TOML would have given it."""
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def _parsed(text: Any) -> Pair:
    if not isinstance(text, str):
        raise InputError(f"override {text!r} must be a text, as in 'optim.lr=0.1'")
    path, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} must read table.key=value, as in --set optim.lr=0.1")
    try:
        return path.strip(), tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):  # also of numbers with thousands of digits
        return path.strip(), value.strip()  # a bare word or fraction: a string


def apply(raw: dict[str, Any], pairs: Sequence[Pair]) -> None:
    """Write the values into the tables. Those that name another class come first."""
    for path, value in sorted(pairs, key=lambda pair: not _renames(pair[0])):
        _write(raw, path, value)


def _renames(path: str) -> bool:
    section, _, key = path.partition(".")
    return KEYED.get(section) == key


def _write(raw: dict[str, Any], path: str, value: Any) -> None:
    section, _, key = path.partition(".")
    if not key:
        raise InputError(f"override {path!r} must be table.key; {_tables_with(path, raw)}")
    table = raw
    *parents, leaf = key.split(".")
    for parent in (section, *parents):
        inner = table.get(parent, {})
        if not isinstance(inner, dict):
            raise InputError(f"override {path} is inside a value, not a table")
        table[parent] = table = dict(inner)  # a copy: the caller keeps its own
    # Another schedule or method starts with an empty table: the old keys mean nothing to it.
    if _renames(path) and table.get(key) != value:
        table.clear()
    if value is None:  # the default
        table.pop(leaf, None)
    else:
        table[leaf] = value


def _tables_with(key: str, raw: dict[str, Any]) -> str:
    """A hint for a key without its table."""
    tables = [table for table, keys in STATIC.items() if key in keys.model_fields]
    tables += [table for table, keys in raw.items() if isinstance(keys, dict) and key in keys]
    near = " or ".join(f"{table}.{key}" for table in dict.fromkeys(tables))
    return f"did you mean {near}?" if near else "as in optim.lr"
