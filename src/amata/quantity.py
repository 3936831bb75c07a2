"""Parse and check values: numbers written as 0.3, "0.3" or "8/255", whole numbers, choices.

A reader takes (value, name) and returns the value, or raises an InputError that names it. The
annotated types below carry their reader; `amata.fields` applies those of a dataclass.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

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


def in_pixels(value: Any, name: str) -> float:
    """A length in pixel values, which are in [0, 1]: one above 1 was meant in units of 1/255."""
    found = positive(value, name)
    if found > 1:
        raise InputError(
            f"{name} = {found:g} is more than 1, the whole range of a pixel; did you mean "
            f'"{found:g}/255"?'
        )
    return found


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
        parts = zip(found.groups() if found else (), (3600, 60, 1, 1), strict=False)
        seconds = sum(float(part) * size for part, size in parts if part) if found else None
    try:
        result = number(seconds, name)
    except InputError:
        result = 0.0
    if result <= 0:
        raise InputError(
            f"{name} = {shown(value)} is not a time above 0; write 30s, 5m or 1h30m, or a number "
            "of seconds"
        )
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
