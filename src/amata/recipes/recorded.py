"""User-defined methods and schedules, as the recipe of a Python run records them.

A recipe can rebuild the methods and schedules that it knows by name. Of a user-defined class it
records the name and the fields. Reading it back gives a placeholder: enough for reports, and an
error where the object itself would be needed.
"""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from amata.errors import InputError
from amata.methods import Method

if TYPE_CHECKING:
    from amata.recipes.recipe import Recipe

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
LARGE = re.compile(r"(?<![\d.])\d{19}")
"""In JSON: TOML's integers have 64 bits."""
LONGEST = 1000
"""Characters of a value that is recorded as it is; of a longer one it is the hash."""
NAME = "python"
"""The name in the table of a user-defined object."""


def describe_object(value: object) -> dict[str, Any]:
    """The class of an object, and its fields as JSON."""
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    found: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if dataclasses.is_dataclass(value):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        own |= _settings(value) if isinstance(value, Method) else {}
        found["fields"] = {name: _plain(own[name]) for name in own if name != "ball"}
    return found


def _settings(method: Method) -> dict[str, Any]:
    """The settings of a method with an __init__ of its own, which are no fields. Whatever else it
    keeps may change in training."""
    simple = bool | int | float | str
    return {k: v for k, v in vars(method).items() if isinstance(v, simple) and k[0] != "_"}


def _plain(value: Any) -> Any:
    """The value if TOML can hold it, else its representation, which must be the same in another
    process: a function is called by its name, sets are sorted, and addresses are left out."""
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        written = "null"
    plain = "null" not in written and not LARGE.search(written)
    text = written if plain else ADDRESS.sub("", repr(value))
    if len(text) > LONGEST:
        return f"{type(value).__name__}, sha256 {hashlib.sha256(text.encode()).hexdigest()}"
    return json.loads(text) if plain else text


def _missing(about: dict[str, Any]) -> InputError:
    return InputError(
        f"this recipe was recorded with the Python object {about.get('class')}, which it cannot "
        "rebuild; pass that again, to amata.fit or in an amata.Recipe to amata.train"
    )


def own_objects(recipe: "Recipe") -> list[str]:
    """Which of method and schedule are user-defined, or placeholders for such."""
    return [section for section in ("method", "schedule") if "class" in recipe.tables[section]]


def refuse_own(recipe: "Recipe", why: str) -> None:
    """Refuse a user-defined method or schedule for what rebuilds them from tables."""
    if made := own_objects(recipe):
        raise InputError(f"the {' and '.join(made)} of {recipe.name}, made in Python, {why}")


def refuse_placeholders(recipe: "Recipe") -> None:
    """Refuse a recipe whose method or schedule is only recorded, before anything is trained."""
    for value in (recipe.method.base, recipe.schedule):
        if isinstance(value, RecordedMethod | RecordedSchedule):
            raise _missing(value.about)


def rebuilt(recipe: "Recipe", source: "Recipe") -> "Recipe":
    """The recipe, with the user-defined objects of `source` in the place of placeholders."""
    found: dict[str, Any] = {}
    if isinstance(recipe.schedule, RecordedSchedule):
        found["schedule"] = source.schedule
    if isinstance(recipe.method.base, RecordedMethod):
        if recipe.ball != source.ball:
            raise InputError(
                f"the method was made in Python, for {source.ball}; make it again for {recipe.ball}"
            )
        found["method"] = source.method
    return dataclasses.replace(recipe, **found)


@dataclass(frozen=True, kw_only=True)
class RecordedMethod(Method):
    """Placeholder for a user-defined method in a recipe that was read back."""

    about: dict[str, Any] = field(default_factory=dict)

    def step(self, *_: Any, **__: Any) -> NoReturn:
        raise _missing(self.about)


@dataclass(frozen=True, kw_only=True)
class RecordedSchedule:
    """Placeholder for a user-defined schedule in a recipe that was read back."""

    about: dict[str, Any] = field(default_factory=dict)

    def __call__(self, epoch: int, epochs: int) -> NoReturn:
        raise _missing(self.about)
