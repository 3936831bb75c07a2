"""Parse, check and format values: numbers written as 0.3, "0.3" or "8/255", whole numbers, choices.

A reader takes (value, name) and returns the value, or raises an InputError that names it. The
annotated types below carry their reader, and `read_fields` applies those of a dataclass:

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
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
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

from amata.errors import InputError, nearest, shorten

SMALLEST, LARGEST = 2.0**-126, 2.0**128
"""The range of float32: a smaller number counts as zero there, a larger one as infinite."""
MOST = 10**9
"""The largest whole number, where nothing else is said."""


def shown(value: object) -> str:
    """The value in an error message: long ones are cut."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "an integer of thousands of digits"
    return shorten(text, 80)


def number(value: Any, name: str = "value") -> float:
    """Parse a number or a string such as "8/255".

    >>> number("8/255") == 8 / 255
    True
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        if isinstance(value, str):
            top, _, bottom = value.partition("/")
            result = float(top) / float(bottom) if bottom else float(value)
        else:
            result = float(value)
    except (TypeError, ValueError, ZeroDivisionError, RuntimeError):
        raise InputError(f'{name} = {shown(value)} is not a number; write 0.3 or "8/255"') from None
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InputError(f"{name} = {shown(value)} is not finite")
    if result and not SMALLEST <= abs(result) < LARGEST:
        raise InputError(f"{name} = {shown(value)} is outside the range of float32")
    return result


def positive(value: Any, name: str) -> float:
    """Parse a number above zero."""
    result = number(value, name)
    if result <= 0:
        raise InputError(f"{name} = {shown(value)} must be above 0")
    return result


def not_negative(value: Any, name: str) -> float:
    """Parse a number of at least zero."""
    result = number(value, name)
    if result < 0:
        raise InputError(f"{name} = {shown(value)} must be at least 0")
    return result


def whole(value: Any, name: str, least: int, most: int = MOST) -> int:
    """Parse an integer from `least` to `most`; 2.0 and "2" become 2."""
    try:
        result = _exact(value, name)
    except InputError:
        result = None  # no number at all
    if result is None or result != int(result) or result < least:
        raise InputError(f"{name} = {shown(value)} must be a whole number of at least {least}")
    if result > most:
        raise InputError(f"{name} = {shown(value)} must be at most {most:,}")
    return int(result)


def _exact(value: Any, name: str) -> float:
    """A number; integers are not rounded to floats."""
    if not isinstance(value, bool | str):
        try:
            return operator.index(value)
        except TypeError:
            pass
    return number(value, name)


def split_names(text: str) -> list[str]:
    """The names in a text with commas.

    >>> split_names("clean, pgd-20")
    ['clean', 'pgd-20']
    """
    return [name.strip() for name in text.split(",")]


DIGITS = r"(\d+(?:\.\d+)?)"
TIME = re.compile(rf"(?:{DIGITS}h)?(?:{DIGITS}m)?(?:{DIGITS}s)?|{DIGITS}")


def duration(value: Any, name: str) -> float:
    """Parse a time in seconds: a number, or a text such as "30s", "5m", "1.5h" or "1h30m". In
    "1h30" the 30 has no unit, and it is refused.

    >>> duration("1h30m", "within"), duration("90", "within")
    (5400.0, 90.0)
    """
    seconds = value
    if isinstance(value, str):
        found = TIME.fullmatch(value.strip())
        if found is None or not any(found.groups()):
            raise InputError(f"{name} = {shown(value)} is not a time; write 30s, 5m or 1h30m")
        parts = zip(found.groups(), (3600, 60, 1, 1), strict=True)
        seconds = sum(float(part or 0) * size for part, size in parts)
    result = number(seconds, name)
    if result <= 0:
        raise InputError(f"{name} = {shown(value)} must be above 0")
    if result > MOST:
        raise InputError(f"{name} = {shown(value)} must be at most {MOST:,} s")
    return result


def in_time(seconds: float) -> str:
    """Seconds as `duration` reads them: 45s, 5m, 1h30m.

    >>> in_time(45), in_time(300), in_time(5430), in_time(12.34)
    ('45s', '5m', '1h30m30s', '12.3s')
    """
    if seconds < 60 and seconds != round(seconds):
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def round_half_up(value: float | Fraction) -> int:
    """The nearest whole number; of a half, the larger."""
    return math.floor(value + 0.5)


def steps_of(value: Any, name: str) -> int | float:
    """Parse K, which may be a fraction; a whole number becomes an integer.

    >>> steps_of(2.0, "K"), steps_of("7/5", "K")
    (2, 1.4)
    """
    try:
        return whole(value, name, 0)
    except InputError:
        result = not_negative(value, name)
        if result == int(result):  # a whole number that is too large
            raise
    return result


def share(value: Any, name: str) -> float:
    """Parse a share: above 0, at most 1."""
    result = positive(value, name)
    if result > 1:
        raise InputError(f"{name} = {shown(value)} is a share: at most 1")
    return result


def stages(value: Any, name: str, read: "Reader") -> tuple[tuple[int, Any], ...]:
    """Parse (first epoch, value) pairs, from epoch 0 on with rising epochs."""
    try:
        pairs = [(first, of_stage) for first, of_stage in value]
    except (TypeError, ValueError):
        raise InputError(
            f"{name} = {shown(value)} must be pairs, as in [[0, 2], [5, 10]]"
        ) from None
    result = tuple(
        (whole(first, f"{name}: first epoch", 0), read(of_stage, f"{name}: value"))
        for first, of_stage in pairs
    )
    starts = [first for first, _ in result]
    if not result or starts[0] != 0 or starts != sorted(set(starts)):
        raise InputError(
            f"{name} = {shown([list(stage) for stage in result])} must start at epoch 0, with "
            "rising epochs, as in [[0, 2], [5, 10]]"
        )
    return result


MOST_SIZES = 4
"""Of images in a run: a GPU compiles its work for each."""


def sizes(value: Any, name: str) -> tuple[tuple[float, int], ...]:
    """Parse (share of the run, side in pixels) pairs, both rising.

    >>> sizes([[0.3, 16]], "sizes")
    ((0.3, 16),)
    """
    try:
        pairs = [(until, side) for until, side in value]
    except (TypeError, ValueError):
        raise InputError(
            f"{name} = {shown(value)} must be pairs of a share of the run and a side in pixels, as "
            "in [[0.3, 16]]"
        ) from None
    result = tuple(
        (share(until, f"{name}: share of the run"), whole(side, f"{name}: side", 1))
        for until, side in pairs
    )
    for of_pairs in zip(*result, strict=True):
        if list(of_pairs) != sorted(set(of_pairs)) or result[-1][0] == 1:
            raise InputError(
                f"{name} = {shown([list(pair) for pair in result])} must have rising shares below "
                "1 and rising sides, as in [[0.2, 16], [0.5, 24]]: the end of a run has full size"
            )
    if len(result) >= MOST_SIZES:
        raise InputError(
            f"{name} has {len(result)} pairs, and every size is compiled; give at most "
            f"{MOST_SIZES - 1}"
        )
    return result


def choice(value: Any, name: str, options: Sequence[Any]) -> Any:
    """One of the options."""
    if value not in options:
        hint = nearest(str(value), [str(option) for option in options])
        raise InputError(f"{name} = {shown(value)} is unknown; {hint}")
    return value


def switch(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {shown(value)} must be True or False")
    return value


Positive = Annotated[float, positive]
NotNegative = Annotated[float, not_negative]
Whole = Annotated[int, partial(whole, least=0)]
Count = Annotated[int, partial(whole, least=1)]
Share = Annotated[float, share]
Steps = Annotated[int | float, steps_of]
Stages = Annotated[tuple[tuple[int, int], ...], partial(stages, read=partial(whole, least=0))]
StepStages = Annotated[tuple[tuple[int, int | float], ...], partial(stages, read=steps_of)]
Sizes = Annotated[tuple[tuple[float, int], ...], sizes]

Reader = Callable[[Any, str], Any]
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


def to_fractions(value: Any) -> Any:
    """Write multiples of 1/255 as fractions, also inside lists and dicts.

    `number` parses them back to the same float; None values of a dict are dropped.

    >>> to_fractions(8 / 255)
    '8/255'
    """
    if isinstance(value, float):
        top = round(value * 255)
        if top / 255 == value and len(repr(value)) > 8:
            return f"{top}/255"
    if isinstance(value, tuple | list):
        return [to_fractions(v) for v in value]
    if isinstance(value, dict):
        return {k: to_fractions(v) for k, v in value.items() if v is not None}
    return value


NORMS = {"linf": "L∞", "l2": "L2"}
"""How texts write the norm of a ball."""


def short_number(value: Any) -> str:
    """A measured or derived number with four digits; multiples of 1/255 as fractions.

    >>> short_number(8 / 255), short_number(0.25), short_number(1 / 12)
    ('8/255', '0.25', '0.08333')
    """
    if not isinstance(value, float):
        return str(value)
    top = round(255 * value)
    nice = abs(255 * value - top) < 1e-6 and len(f"{value:.10g}") > 6
    return f"{top}/255" if nice else f"{value:.4g}"


def short_steps(steps: float) -> str:
    """The K of an epoch.

    >>> short_steps(2), short_steps(1 + 1 / 15)
    ('2', '1.07')
    """
    return str(steps) if isinstance(steps, int) else f"{steps:.3g}"


def describe_ball(norm: str, eps: float) -> str:
    """A ball as texts write it.

    >>> describe_ball("linf", 8 / 255)
    'L∞ 8/255'
    """
    return f"{NORMS.get(norm, norm)} {short_number(eps)}"


def describe_parts(parts: Mapping[str, float]) -> str:
    """The accuracy after each part of an attack.

    >>> describe_parts({"apgd-ce": 0.488, "apgd-t": 0.458})
    'after apgd-ce 48.8%, apgd-t 45.8%'
    """
    return "after " + ", ".join(f"{name} {right:.1%}" for name, right in parts.items())


def to_text(value: Any) -> str:
    """A recipe's value for a table or a title, without float noise.

    >>> to_text(8 / 255), to_text(0.1 + 0.2), to_text(True), to_text(["clean", "pgd-20"])
    ('8/255', '0.3', 'true', 'clean, pgd-20')
    """
    found = to_fractions(value)
    if isinstance(found, float):
        return f"{found:.10g}"
    if isinstance(found, list) and not any(isinstance(v, list | dict) for v in found):
        return ", ".join(map(to_text, found))
    return str(found).lower() if isinstance(found, bool) else str(found)
