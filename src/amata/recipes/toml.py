"""Tables as TOML text, with lists as people write them."""

import re
from typing import Any

import tomli_w

WIDTH = 100
"""Of a line."""
INDENT = "    "
# Of values without brackets, then of such lists. tomli_w escapes the newlines of texts, so a line
# that begins or ends a list is no part of a text.
_LISTS = (r"[^ \[\]\n][^\[\]\n]*", r"\[[^\[\]\n]*\]")


def dumps(tables: dict[str, Any]) -> str:
    """A list takes one line, or as few as it needs; tomli_w gives every value its own.

    >>> print(dumps({"stages": [[0, 1], [5, 2.5]], "attacks": ["clean"]}))
    stages = [[0, 1], [5, 2.5]]
    attacks = ["clean"]
    <BLANKLINE>
    """
    text = tomli_w.dumps(tables)
    for item in _LISTS:
        text = re.sub(rf"(?m)^(.*)\[\n((?: +{item},\n)++) *\]", _joined, text)
    return text


def _joined(found: re.Match[str]) -> str:
    before, items = found[1], [line.strip(" ") for line in found[2].rstrip("\n").split("\n")]
    line = f"{before}[{' '.join(items).removesuffix(',')}]"
    if len(line) <= WIDTH:
        return line
    lines = [INDENT + items[0]]
    for item in items[1:]:
        if len(lines[-1]) + 1 + len(item) <= WIDTH:
            lines[-1] += f" {item}"
        else:
            lines.append(INDENT + item)
    return "\n".join([f"{before}[", *lines, "]"])
