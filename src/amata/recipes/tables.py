"""Recipes and tables: objects from the tables of a TOML file, and tables from objects."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from amata.errors import InputError, nearest, unknown
from amata.methods import AWP, METHODS
from amata.quantity import shown
from amata.recipes import recorded, schema
from amata.recipes.files import KEYED, TABLES
from amata.recipes.overrides import Pair, apply
from amata.recipes.problems import first_problem
from amata.recipes.recipe import Recipe, Tables
from amata.schedules import SCHEDULES, planned_controls
from amata.threat import BALLS

if TYPE_CHECKING:
    from amata.recipes.schema import Table

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "threat": BALLS,
    "method": METHODS,
    "schedule": SCHEDULES,
}
DEPTH = 20
"""The most levels of tables and lists in a recipe."""
PLACEHOLDERS: dict[str, Any] = {
    "method": recorded.RecordedMethod,
    "schedule": recorded.RecordedSchedule,
}


def tables_of(recipe: Recipe, *, exclude_defaults: bool = False) -> Tables:
    """The tables that describe a recipe's objects, in the order of a TOML file."""
    objects = {"threat": recipe.ball, "method": recipe.method, "schedule": recipe.schedule}
    found: Tables = {}
    for section in TABLES:
        if section in objects:
            found[section] = _table_of(section, objects[section], exclude_defaults)
            own = section == "schedule" and "class" in found[section]
            if own and "controls" not in found[section]:
                found[section]["controls"] = _controls(recipe)
        else:
            static: Table = getattr(recipe, section)
            if section == "optim":  # AdamW has other defaults than the table
                static = schema.Optim(**static.model_dump())
            found[section] = static.model_dump(mode="json", exclude_defaults=exclude_defaults)
    return {section: table for section, table in found.items() if table or not exclude_defaults}


def _controls(recipe: Recipe) -> list[list[float]]:
    """The control of every epoch of a user-defined schedule: its name says little."""
    planned = planned_controls(recipe.schedule, recipe.train.epochs)
    return [
        [
            u.steps,
            u.step_size,
            *([u.tau or 0.0, u.eps] if u.tau or u.eps != 1 or u.size or u.step_size_max else []),
            *([u.size or 0] if u.size or u.step_size_max else []),
            *([u.step_size_max] if u.step_size_max else []),
        ]
        for u in planned or []
    ]


def _table_of(section: str, value: Any, exclude_defaults: bool) -> dict[str, Any]:
    if isinstance(value, AWP):
        awp = schema.awp_table()(gamma=value.gamma, warmup=value.warmup)
        around = awp.model_dump(mode="json", exclude_defaults=exclude_defaults)
        return {**_table_of(section, value.method, exclude_defaults), "awp": around}
    if isinstance(value, recorded.RecordedMethod | recorded.RecordedSchedule):
        return {KEYED[section]: recorded.NAME, **value.about}
    key = KEYED[section]
    name = next((n for n, cls in REGISTRIES[section].items() if type(value) is cls), None)
    if name is None:
        return {key: recorded.NAME, **recorded.describe_object(value)}
    fields = [f.name for f in dataclasses.fields(value) if f.name != "ball"]
    given = {key: name, **{field: getattr(value, field) for field in fields}}
    exclude = {"awp"} if section == "method" else None
    # Through the table's own types, so that 1 and 1.0 are written alike.
    table = schema.table_of(REGISTRIES[section][name], key, name)
    try:
        checked = table.model_validate(given)
    except ValidationError as error:
        raise InputError(f"[{section}] {first_problem(error, table)}") from None
    return checked.model_dump(mode="json", exclude=exclude, exclude_defaults=exclude_defaults)


def parse(raw: dict[str, Any], name: str, overrides: Sequence[Pair] = ()) -> Recipe:
    """Validate the tables of a recipe and build what they describe."""
    # A key with the value None, as in the tables of another recipe, is a key that is not given.
    raw = {
        section: {k: v for k, v in table.items() if v is not None}
        if isinstance(table, dict)
        else table
        for section, table in raw.items()
    }
    apply(raw, overrides)
    values = _plain_values(raw, name)
    kinds: dict[str, type[BaseModel]] = {}
    for section, registry in REGISTRIES.items():
        kinds[section] = _kind(section, raw.get(section), registry, name)
    model = schema.recipe_of(
        *kinds.values(),
        schema.PythonData if _named(raw, "data") == recorded.NAME else schema.Data,
        schema.PythonModel if _named(raw, "model") == recorded.NAME else schema.Model,
    )
    try:
        checked: Any = model.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"recipe {name}: {first_problem(error, model)}") from None
    # model.args may hold any value; TOML has no larger numbers
    for value in values:
        if isinstance(value, int) and abs(value) >= 2**64:
            raise InputError(f"recipe {name}: {shown(value)} is too large a number")
    ball = _build("threat", checked.threat, name)
    return Recipe(
        name=name,
        **{section: getattr(checked, section) for section in schema.STATIC},
        method=_build("method", checked.method, name, ball=ball),
        schedule=_build("schedule", checked.schedule, name),
    )


def _plain_values(raw: dict[str, Any], name: str) -> list[Any]:
    """The values in all tables and lists. Refuses what is nested too deeply to be written again."""
    level: list[Any] = [raw]
    found: list[Any] = []
    for _ in range(DEPTH):
        inner = [v for t in level for v in (t.values() if isinstance(t, dict) else t)]
        level = [value for value in inner if isinstance(value, dict | list | tuple)]
        found += inner
    if level:
        raise InputError(f"recipe {name}: it is nested more than {DEPTH} deep")
    return found


def _named(raw: dict[str, Any], section: str) -> Any:
    table = raw.get(section)
    return table.get("name") if isinstance(table, dict) else None


def _kind(section: str, table: Any, registry: Mapping[str, Any], name: str) -> type[BaseModel]:
    """The schema of a table that names a class."""
    key = KEYED[section]
    if not isinstance(table, dict) or key not in table:
        raise InputError(f"recipe {name}: [{section}] needs the key {key}; {nearest('', registry)}")
    if table[key] == recorded.NAME and section in PLACEHOLDERS:
        return schema.RecordedTable
    if not isinstance(table[key], str) or table[key] not in registry:
        own = section in PLACEHOLDERS and ":" in str(table[key])
        raise InputError(
            f"recipe {name}: {section}.{key}: {unknown(section, str(table[key]), registry)}"
            + (f"; a {section} of your own goes to amata.fit or amata.train, in Python" * own)
        )
    return schema.table_of(registry[table[key]], key, table[key])


def _build(section: str, table: BaseModel, recipe: str, **more: Any) -> Any:
    """The object that a checked table describes."""
    given = table.model_dump(mode="json")
    name = given.pop(KEYED[section])
    awp = given.pop("awp", None) if section == "method" else None
    place = section
    try:
        if name == recorded.NAME:
            built = PLACEHOLDERS[section](about=given, **more)
        else:
            built = REGISTRIES[section][name](**given, **more)
        if awp is None:
            return built
        place = f"{section}.awp"
        return AWP(built, **awp)
    except InputError as error:
        raise InputError(f"recipe {recipe}: [{place}] {error}") from None
