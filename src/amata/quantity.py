"""Numbers as people write them: 0.3, "0.3" or "8/255"."""

import math
from typing import Any

from amata.errors import InputError


def number(value: Any, name: str = "value") -> float:
    """The float that a number or a string such as "8/255" stands for.

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
    """`number`, and above zero."""
    result = number(value, name)
    if result <= 0:
        raise InputError(f"{name} = {value!r} must be above 0")
    return result


def whole(value: Any, name: str, least: int) -> int:
    """An integer of at least `least`; 2.0 and "2" are read as 2."""
    result = number(value, name)
    if result != int(result) or result < least:
        raise InputError(f"{name} = {value!r} must be a whole number of at least {least}")
    return int(result)


def spelled(value: Any) -> Any:
    """Floats that are whole 255ths, also within lists and tables, as people write them; `number`
    gives back the same float.

    >>> spelled(8 / 255)
    '8/255'
    """
    if isinstance(value, float):
        top = round(value * 255)
        if top / 255 == value and len(repr(value)) > 8:
            return f"{top}/255"
    if isinstance(value, tuple | list):
        return [spelled(v) for v in value]
    if isinstance(value, dict):
        return {k: spelled(v) for k, v in value.items() if v is not None}
    return value
