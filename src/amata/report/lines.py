"""The lines of recipes in a figure: their colours, their names at the line ends, or a legend
outside the axes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from amata.report.escape import for_figure, for_html
from amata.report.figures import INK, SERIES

FEW, SHORT = 4, 14
"""So many recipes, with names of so many characters, are named at the ends of their lines."""

STYLES = (("-", "solid"), ("--", "dashed"), (":", "dotted"), ("-.", "double"))
"""Line styles, and what is closest to them in CSS."""


class Line(NamedTuple):
    """A recipe's curves and their style."""

    recipe: str
    colour: str
    marker: str
    style: str
    css: str
    curves: list[dict[str, Any]]

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"color": self.colour, "ls": self.style}


def recipe_lines(result: dict[str, Any]) -> list[Line]:
    """One line style per recipe, in the order of the rows."""
    found = []
    for index, row in enumerate(result["rows"]):
        colour, marker = SERIES[index % len(SERIES)]
        style, css = STYLES[index // len(SERIES) % len(STYLES)]
        curves = [c for c in result["curves"] if c["recipe"] == row["recipe"]]
        found.append(Line(row["recipe"], colour, marker, style, css, curves))
    return found


def named_at_ends(lines: Sequence[Line]) -> bool:
    """Whether no legend is needed: names stand at the ends of the lines, or there is one line."""
    short = all(len(for_figure(line.recipe)) <= SHORT for line in lines)
    return len(lines) == 1 or (len(lines) <= FEW and short)


def page_legend(result: dict[str, Any]) -> str:
    """HTML: one legend for all figures of a page, or nothing if lines are named at their ends."""
    lines = recipe_lines(result)
    if named_at_ends(lines):
        return ""
    items = (
        f'<li><i style="border-top: 3px {line.css} {line.colour}"></i>{for_html(line.recipe)}</li>'
        for line in lines
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def legend_columns(lines: Sequence[Line], width: float) -> int:
    """The columns of a legend that fits into so many inches."""
    longest = max(len(for_figure(line.recipe)) for line in lines)
    return min(len(lines), max(1, int(width / (0.5 + 0.068 * longest))))


def add_legend(ax: Any, lines: Sequence[Line]) -> None:
    """A legend above the axes; the figure grows by its height."""
    figure = ax.figure
    width, height = figure.get_size_inches()
    columns = legend_columns(lines, width)
    figure.set_size_inches(width, height + 0.18 * -(-len(lines) // columns))
    handles = [
        ax.plot(
            [], [], **line.kwargs, marker=line.marker, ms=4, lw=1.8, label=for_figure(line.recipe)
        )[0]
        for line in lines
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
        columnspacing=1.2,
    )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart.

    >>> spread([0.0, 1.0], 0.1)
    [0.0, 1.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[float, list[int]]] = []  # the centre of each group, and its members
    for i in order:
        groups.append((wanted[i], [i]))
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            (_, lower), (_, upper) = groups[-2:]
            members = [*lower, *upper]
            groups[-2:] = [(sum(wanted[i] for i in members) / len(members), members)]
    places = dict.fromkeys(order, 0.0)
    for group in groups:
        for step, i in enumerate(group[1]):
            places[i] = _bottom(group, gap) + step * gap
    return [places[i] for i in range(len(wanted))]


def _bottom(group: tuple[float, list[int]], gap: float) -> float:
    return group[0] - gap * (len(group[1]) - 1) / 2


def _top(group: tuple[float, list[int]], gap: float) -> float:
    return group[0] + gap * (len(group[1]) - 1) / 2


def label_ends(
    ax: Any,
    ends: Sequence[tuple[Line, float, float]],
    levels: Sequence[tuple[str, float]] = (),
) -> None:
    """Names to the right of the axes, at the height of each line's end (x, y), and of levels. One
    line needs no name."""
    edge = ax.get_xlim()[1]
    labels = [(for_figure(line.recipe), line.colour, y) for line, _, y in ends if len(ends) > 1]
    labels += [(text, INK, y) for text, y in levels]
    for line, x, y in ends:
        if x < 0.97 * edge:  # a line that ends earlier
            ax.plot([x, edge], [y, y], color=line.colour, lw=0.8, ls=":", alpha=0.6)
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = [float(to_axes.transform((edge, y))[1]) for *_, y in labels]
    for (text, colour, _), place in zip(labels, spread(heights, 0.08), strict=True):
        ax.annotate(
            text,
            (1.015, place),
            xycoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )
