"""A comparison as one self-contained HTML page: no network, no script; light and dark, for screens,
phones and print."""

import base64
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

from amata.report.captions import about_curves, about_results, events, setting
from amata.report.comparison import PageFigure
from amata.report.escape import for_html
from amata.report.figures import INK
from amata.report.lead import about_lead, headline, lead_table
from amata.report.lines import page_legend
from amata.report.tables import (
    Cell,
    difference_table,
    environment_table,
    first_line,
    flat,
    result_table,
)

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
"""The Content-Security-Policy: no script and no network, even if a name were not escaped."""
STYLE = resources.files("amata.report").joinpath("style.css").read_text()


class Section(NamedTuple):
    """A part of a page: its heading, and its HTML."""

    title: str
    parts: Sequence[str]


def page(
    result: dict[str, Any], figures: Sequence[PageFigure], title: str, images: str = ""
) -> str:
    """The HTML of the page of a comparison; `images` are its gallery."""
    lead = lead_table(result)
    top = [
        f'<p class="headline">{sentence}</p>' if (sentence := headline(result)) else "",
        html_table(lead, "Recipes under one attack") if lead else "",
        soft(about_lead(result)),
        soft(setting(result)),
        *(f'<p class="warn">{for_html(w)}</p>' for w in result["warnings"]),
    ]
    return document(title, [Section("", top), *_sections(result, figures, images)])


def _sections(result: dict[str, Any], figures: Sequence[PageFigure], images: str) -> list[Section]:
    """What follows the lead, in order; a section without parts is left out."""
    differences = html_table(
        difference_table(result), "Keys that differ between the recipes", prose=True
    )
    order = (
        f"Run order: {', '.join(result['order'])}. Times are training times, measured with device "
        "synchronisation. They exclude compilation and validation."
    )
    return [
        Section(
            "Results",
            [html_table(result_table(result), "Results per recipe"), soft(about_results(result))],
        ),
        Section(
            "Curves",
            [
                page_legend(result),
                f'<div class="figures">{"".join(map(_figure, figures))}</div>',
                soft(about_curves(result)),
            ],
        ),
        Section("Events", [events(result)]),
        Section("Images", [images]),
        Section("Recipe differences", [differences if result["differences"] else ""]),
        Section(
            "Environment",
            [html_table(environment_table(result), "Environment", prose=True), soft(order)],
        ),
    ]


def document(title: str, sections: Sequence[Section]) -> str:
    """A whole HTML page; headings and parts that are empty are left out."""
    parts = [f"<h1>{for_html(title)}</h1>"]
    for section in sections:
        if found := [part for part in section.parts if part]:
            parts += [f"<h2>{for_html(section.title)}</h2>"] if section.title else []
            parts += found
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{for_html(title)}</title>\n<link rel="icon" '
        f'href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n'
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def soft(text: str) -> str:
    """A paragraph of small print; nothing for an empty text."""
    return f'<p class="soft">{for_html(text)}</p>' if text else ""


def html_table(
    table: list[list[Cell]], caption: str, *, prose: bool = False, cards: bool = True
) -> str:
    """A table whose first column names its rows; the other columns hold numbers, or prose. Without
    `cards` it stays a table on phones: better for many short rows.

    The explicit ARIA roles are for phones: browsers drop table semantics when CSS lays out rows as
    cards.
    """

    def cell(value: Cell, column: int, tag: str, role: str) -> str:
        small = (
            f"<small>{_keep_intervals(value[1])}</small>"
            if not isinstance(value, str) and value[1]
            else ""
        )
        kind = ' class="text"' if prose or column == 0 else ""
        scope = {"columnheader": ' scope="col"', "rowheader": ' scope="row"'}.get(role, "")
        label = (
            f' data-label="{for_html(flat(table[0][column]))}"'
            if role == "cell" and not prose
            else ""
        )
        first = for_html(first_line(value))
        if prose and role == "rowheader":  # a key: break it between its words
            first = re.sub(r"(?<=[._])(?=\w)", "<wbr>", first)
        if role == "columnheader" and not prose:
            first = first.replace("speed-up", "speed&#8209;up")
        if small and role == "columnheader":  # an attack's name
            first = first.replace("-", "&#8209;").replace("@", "<wbr>@")
        return f'<{tag} role="{role}"{scope}{label}{kind}>{first}{small}</{tag}>'

    head = "".join(cell(value, i, "th", "columnheader") for i, value in enumerate(table[0]))
    names = [cell(row[0], 0, "th", "rowheader") for row in table[1:]]
    values = [
        "".join(cell(value, i, "td", "cell") for i, value in enumerate(row) if i)
        for row in table[1:]
    ]
    body = "".join(
        f'<tr role="row">{name}{rest}</tr>' for name, rest in zip(names, values, strict=True)
    )
    kind = "wide cards" if cards else "wide compact"
    if prose:
        kind = "wide prose many" if len(table[0]) > 4 else "wide prose"
    return (
        f'<div class="{kind}" tabindex="0" role="region" aria-label="{for_html(caption)}"><table '
        'role="table">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody '
        f'role="rowgroup">{body}</tbody></table></div>'
    )


def _keep_intervals(words: str) -> str:
    """Escape, and keep an interval on one line."""
    return re.sub(r"([\d.]+) to ([\d.]+)", r"\1&nbsp;to&nbsp;\2", for_html(words))


def _figure(figure: PageFigure) -> str:
    """The SVG inline, with the page's text colour and background."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r'<g id="patch_1">.*?</g>', "", svg, count=1, flags=re.S)  # the white background
    svg = re.sub(r"<[^>]*>", lambda tag: _for_page(tag[0], figure.name), svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ([^>]*?)height="[^"]*"( '
        r'[^>]*?)width="[^"]*"',
        _unsized,
        svg,
        count=1,
    )
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{for_html(figure.alt)}" ', 1)
    return f"<figure><figcaption>{for_html(figure.title)}</figcaption>{svg}</figure>"


def picture(figure: PageFigure) -> str:
    """The figure as an image with colours of its own, whatever the page's are."""
    data = base64.b64encode(figure.svg.encode()).decode()
    return (
        f"<figure><figcaption>{for_html(figure.title)}</figcaption>"
        f'<img alt="{for_html(figure.alt)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def _for_page(tag: str, name: str) -> str:
    """A tag of a figure with the page's colours, and ids that are unique in the page."""
    tag = tag.replace(INK, "currentColor").replace("fill: #ffffff", "fill: none")
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", tag)


def _unsized(match: "re.Match[str]") -> str:
    return "<svg " + "".join(group for group in match.groups() if group)
