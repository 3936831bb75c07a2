"""Objects of a run made in Python, as its recipe records them.

A recipe can rebuild the methods, schedules and balls that it knows by name. Of anybody's own class
it records the name and the fields. What is read back is a placeholder: enough for reports, and an
error where the object itself would be needed.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from amata.errors import InputError
from amata.methods import Method

NAME = "python"
"""What stands for a name in a table that describes an object made in Python."""


def describe_object(value: object) -> dict[str, Any]:
    """The class of an object and those of its fields that JSON can hold."""
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    found: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            if f.name != "ball":
                found[f.name] = _plain(getattr(value, f.name))
    return found


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)


def _missing(about: dict[str, Any]) -> InputError:
    return InputError(
        f"this run used the Python class {about.get('class')}, which a recipe cannot rebuild; pass "
        "it again: amata.fit(model, train, method=..., schedule=..., resume=FOLDER)"
    )


@dataclass(frozen=True, kw_only=True)
class RecordedMethod(Method):
    """Stands for somebody's own method in a recipe that was read back."""

    about: dict[str, Any] = field(default_factory=dict)

    def step(self, *_: Any, **__: Any) -> NoReturn:
        raise _missing(self.about)


@dataclass(frozen=True, kw_only=True)
class RecordedSchedule:
    """Stands for somebody's own schedule in a recipe that was read back."""

    about: dict[str, Any] = field(default_factory=dict)

    def __call__(self, epoch: int, epochs: int) -> NoReturn:
        raise _missing(self.about)
