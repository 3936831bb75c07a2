"""Parse and format numbers written as 0.3, "0.3" or "8/255"."""

import math
from typing import Any

from amata.errors import InputError


def number(value: Any, name: str = "value") -> float:
    """Parse a number or a string such as "8/255".

    >>> number("8/255") == 8 / 255
    True
    """
    if isinstance(value, bool):
        raise InputError(f'{name} = {value!r} is not a number; write 0.3 or "8/255"')
    try:
        if isinstance(value, str):
            top, _, bottom = value.partition("/")
            result = float(top) / float(bottom) if bottom else float(value)
        else:
            result = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f'{name} = {value!r} is not a number; write 0.3 or "8/255"') from None
    if not math.isfinite(result):
        raise InputError(f"{name} = {value!r} is not finite")
    return result


def positive(value: Any, name: str) -> float:
    """Parse a number above zero."""
    result = number(value, name)
    if result <= 0:
        raise InputError(f"{name} = {value!r} must be above 0")
    return result


def whole(value: Any, name: str, least: int) -> int:
    """Parse an integer of at least `least`; 2.0 and "2" become 2."""
    result = number(value, name)
    if result != int(result) or result < least:
        raise InputError(f"{name} = {value!r} must be a whole number of at least {least}")
    return int(result)


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
