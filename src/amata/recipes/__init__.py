"""Recipes: a training run as a TOML file, validated, with every default filled in and every error
named by its place."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from amata.errors import InputError, nearest, unknown
from amata.quantity import to_fractions

if TYPE_CHECKING:
    from amata.methods import Method
    from amata.recipes import schema
    from amata.schedules import Schedule
    from amata.threat import Ball

__all__ = ["KEYED", "OPERATIONAL", "Recipe", "built_in", "load", "parse", "read_toml"]

OPERATIONAL = frozenset(
    {
        "data.root",
        "data.workers",
        "train.device",
        "train.engine",
        "train.deterministic",
        "train.keep_epochs",
        "train.save_minutes",
        "train.tensorboard",
    }
)
"""Keys that say how a run is carried out, not what it computes: they may change when it is
resumed."""

KEYED = {"threat": "norm", "method": "name", "schedule": "name"}


@dataclass(frozen=True)
class Recipe:
    """A validated recipe: its tables, and the objects that they describe."""

    name: str
    data: "schema.Data"
    model: "schema.Model"
    optim: "schema.Optim"
    train: "schema.Train"
    eval: "schema.Eval"
    ball: "Ball"
    method: "Method"
    schedule: "Schedule"
    tables: dict[str, dict[str, Any]]
    """Every key with its value, defaults included."""
    chosen: dict[str, dict[str, Any]]
    """The keys whose values are not the defaults."""

    @property
    def training_ball(self) -> "Ball":
        """What training attacks stay in: the threat's ball, larger or smaller where the method has
        a reach."""
        return self.ball.scaled(getattr(self.method, "reach", 1.0))

    def to_toml(self) -> str:
        return tomli_w.dumps(
            {
                section: {k: to_fractions(v) for k, v in table.items() if v is not None}
                for section, table in self.tables.items()
            }
        )

    def deciding(self) -> dict[str, dict[str, Any]]:
        """The keys that decide what the run computes, without those that say where and how it is
        carried out."""
        return _deciding(self.tables)

    def fingerprint(self) -> str:
        """A hash of everything that decides what the run computes. Defaults are left out, so that a
        key added later changes nothing."""
        return hashlib.sha256(
            json.dumps(_deciding(self.chosen), sort_keys=True).encode()
        ).hexdigest()[:16]


def _deciding(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kept = {
        s: {k: v for k, v in t.items() if f"{s}.{k}" not in OPERATIONAL} for s, t in tables.items()
    }
    return {s: t for s, t in kept.items() if t}


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
    from pydantic import ValidationError

    from amata.methods import METHODS
    from amata.recipes import schema
    from amata.schedules import SCHEDULES
    from amata.threat import BALLS

    # A key without a value, as in the tables of another recipe, is a key that was not given.
    raw = {
        s: {k: v for k, v in t.items() if v is not None} if isinstance(t, dict) else t
        for s, t in raw.items()
    }
    for override in sorted(overrides, key=lambda text: not _renames(text)):
        _override(raw, override)
    registries: dict[str, dict[str, Any]] = {
        "threat": dict(BALLS),
        "method": METHODS,
        "schedule": SCHEDULES,
    }
    kinds = []
    for section, registry in registries.items():
        table, key = raw.get(section), KEYED[section]
        if not isinstance(table, dict) or key not in table:
            raise InputError(
                f"recipe {name}: [{section}] needs the key {key}; {nearest('', registry)}"
            )
        if not isinstance(table[key], str) or table[key] not in registry:
            raise InputError(
                f"recipe {name}: {section}.{key}: {unknown(section, str(table[key]), registry)}"
            )
        kinds.append(schema.table_of(registry[table[key]], key, table[key]))
    model = schema.recipe_of(*kinds)
    try:
        checked = model.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"recipe {name}: {_first_line(error, model)}") from None
    tables = checked.model_dump(mode="json")

    def build(section: str, **more: Any) -> Any:
        arguments = {k: v for k, v in tables[section].items() if k != KEYED[section]}
        try:
            return registries[section][tables[section][KEYED[section]]](**arguments, **more)
        except InputError as error:
            raise InputError(f"recipe {name}: [{section}] {error}") from None

    ball = build("threat")
    return Recipe(
        name=name,
        **{section: getattr(checked, section) for section in schema.STATIC},
        ball=ball,
        method=build("method", ball=ball),
        schedule=build("schedule"),
        tables=tables,
        chosen=checked.model_dump(mode="json", exclude_defaults=True),
    )


def _renames(override: str) -> bool:
    section, _, key = override.partition("=")[0].strip().partition(".")
    return KEYED.get(section) == key


def _override(raw: dict[str, Any], text: str) -> None:
    path, equals, value = text.partition("=")
    section, _, key = path.strip().partition(".")
    if not equals or not key:
        raise InputError(f"--set {text!r} must read table.key=value, as in --set optim.lr=0.1")
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word or fraction: a string
    table = raw.setdefault(section, {})
    *parents, leaf = key.split(".")
    for parent in [None, *parents]:
        table = table if parent is None else table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {text!r}: {path.strip()} lies inside a value that is no table")
    # Naming another schedule or method starts its table afresh: the old one's keys mean nothing to
    # it.
    if _renames(text) and table.get(key) != parsed:
        table.clear()
    table[leaf] = parsed


def _first_line(error: Any, model: Any) -> str:
    """The first thing wrong, named by its place, with the nearest key if one was mistyped."""
    problems = error.errors(include_url=False)
    first = problems[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known: Any = model
        for part in first["loc"][:-1]:
            known = known.model_fields[part].annotation
        message = f"unknown key; {nearest(str(first['loc'][-1]), known.model_fields)}"
    elif first["type"] == "missing":
        places = [p["loc"] for p in problems if p["type"] == "missing"]
        lacking = [".".join(map(str, loc)) if len(loc) > 1 else f"[{loc[0]}]" for loc in places]
        return f"{' and '.join(lacking)}: {'this is' if len(lacking) == 1 else 'these are'} needed"
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
    else:
        message = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{place}: {message}{more}"
