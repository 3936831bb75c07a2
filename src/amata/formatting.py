"""Values as texts: for recipes, tables, titles and messages."""

from collections.abc import Mapping
from typing import Any


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
