"""Names as each format shows them literally: HTML, CSV, Markdown and matplotlib. A recipe, a run or
a class may be named by a stranger."""

import html
import re

from amata.errors import printable

LONGEST = 40
"""Characters of a name in a figure; longer ones lose their middle."""


def for_html(text: str) -> str:
    """Text for an element or a quoted attribute."""
    return html.escape(printable(text))


def for_csv(text: str) -> str:
    """A cell of a CSV file: a spreadsheet would compute a text that begins like a formula."""
    text = printable(text)
    number = re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not number else text


def for_markdown(text: str) -> str:
    """A cell of a Markdown table, or a heading."""
    return html.escape(re.sub(r"([\\|`*\[\]])", r"\\\1", printable(text)), quote=False)


def for_figure(text: str, longest: int = LONGEST) -> str:
    """Text in a figure: matplotlib reads $ as mathtext and hides labels that begin with _."""
    text = printable(text)
    if len(text) > longest:
        text = f"{text[: longest // 2]}…{text[-longest // 2 :]}"
    return " " * text.startswith("_") + text.replace("$", r"\$")
