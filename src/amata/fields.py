"""The fields of dataclasses: each is read by the reader of its annotation.

>>> from amata.quantity import Positive
>>> @dataclasses.dataclass(frozen=True)
... class Step:
...     size: Positive = 0.1
...     def __post_init__(self) -> None:
...         read_fields(self)
>>> Step(-1)
Traceback (most recent call last):
amata.errors.InputError: size = -1 must be above 0
"""

import dataclasses
import inspect
from collections.abc import Mapping
from functools import cache, partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from amata.errors import InputError, nearest
from amata.quantity import MOST, Reader, choice, number, switch, whole

SIMPLE: dict[Any, Reader] = {bool: switch, float: number, int: partial(whole, least=-MOST)}
SIMPLE_OF_USERS: dict[Any, Reader] = {
    float: lambda value, name: number(value, name) if isinstance(value, str) else value
}
"""In a user's class, a plain float may be infinite; only texts such as "8/255" are read."""


class Keywords:
    """Refuses arguments that a dataclass does not have, with the nearest that it has."""

    belongs: ClassVar[Mapping[str, str]] = {}
    """Arguments that one may look for here, and where they are."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        if "__dataclass_fields__" not in vars(cls) and (new := _new_fields(cls)):
            raise InputError(
                f"{cls.__name__} has new fields ({', '.join(new)}): write @dataclass(frozen=True, "
                "kw_only=True) above the class"
            )
        known = dict(inspect.signature(cls.__init__).parameters)
        known.pop("self", None)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
        if not takes_all and (wrong := [name for name in given if name not in known]):
            way = cls.belongs.get(wrong[0]) or nearest(wrong[0], known)
            raise InputError(f"{cls.__name__} has no argument {wrong[0]!r}; {way}")
        return super().__new__(cls)


def _new_fields(cls: type) -> list[str]:
    """The annotated attributes of a class itself that would be fields of a dataclass."""
    own = inspect.get_annotations(cls)
    return [name for name, hint in own.items() if "ClassVar" not in str(hint)]


def read_fields(value: Any) -> None:
    """Replace every field of a frozen dataclass by what its annotation's reader makes of it."""
    cls: Any = type(value)
    for name, read in _readers(cls).items():
        object.__setattr__(value, name, read(getattr(value, name), name))


@cache
def _readers(cls: type) -> dict[str, Reader]:
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # somebody's class, with names that exist for type checkers only
        return {}
    simple = SIMPLE if cls.__module__.startswith("amata.") else SIMPLE_OF_USERS
    found = {f.name: _reader(hints[f.name], simple) for f in dataclasses.fields(cls)}
    return {name: read for name, read in found.items() if read is not None}


def _reader(hint: Any, simple: Mapping[Any, Reader]) -> Reader | None:
    """The reader of an annotation; None for types that are not checked here."""
    kind = get_origin(hint)
    if kind is Annotated:
        return next((extra for extra in hint.__metadata__ if callable(extra)), None)
    if kind is Literal:
        return partial(choice, options=get_args(hint))
    if kind in (Union, UnionType):
        inner = [_reader(part, simple) for part in get_args(hint) if part is not type(None)]
        return partial(_optional, read=inner[0]) if len(inner) == 1 and inner[0] else None
    return simple.get(hint)


def _optional(value: Any, name: str, read: Reader) -> Any:
    return None if value is None else read(value, name)
