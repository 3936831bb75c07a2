"""A table that fits any width: what has no room beside a row is written below it."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from amata.errors import printable

NAME = 32
"""The most columns of a name; a longer one ends in an ellipsis."""

Cell = str | tuple[str, str]
"""A text, or its long and its short form."""


class Column(NamedTuple):
    title: str
    rank: int = 0
    """Columns of a higher rank are written below the rows first."""
    text: bool = False
    """Text, which is aligned left, and has no title below a row."""


class Grid:
    """Rows under titles. The first column stays beside the others and names the row."""

    def __init__(self, *columns: Column, titles: bool = True) -> None:
        self.columns = columns
        self.titles = titles
        self.rows: list[tuple[Cell, ...]] = []
        self.caption = ""

    def add_row(self, *cells: Cell) -> None:
        assert len(cells) == len(self.columns)
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        return self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """The first layout that fits: long numbers, short numbers, then fewer and fewer columns
        beside the row."""
        numbers = range(1, len(self.columns))
        order = sorted(numbers, key=lambda i: (-self.columns[i].rank, -i))
        for moved in (None, *range(len(self.columns))):
            rows = [self._texts(row, short=moved is not None) for row in self.rows]
            beside = [i for i in range(len(self.columns)) if i not in order[: moved or 0]]
            widths = [max(map(cell_len, self._column(i, rows)), default=0) for i in beside]
            if sum(widths) + 2 * (len(widths) - 1) <= width:
                break
        if self.titles:
            titles = [printable(column.title) for column in self.columns]
            yield Text(self._line(titles, beside, widths), style="bold")
        for row in rows:
            shown = Text(self._line(row, beside, widths))
            if not self.titles:
                shown.stylize("bold", 0, len(row[0]))
            yield shown
            below = [self._pair(i, row) for i in numbers if i not in beside]
            for line in flow([pair for pair in below if pair], width - 2):
                yield Text(f"  {line}", style="dim" if self.titles else "")
        for line in flow([self.caption], width):
            yield Text(line, style="dim")

    def _texts(self, row: tuple[Cell, ...], short: bool) -> list[str]:
        texts = [printable(cell if isinstance(cell, str) else cell[short]) for cell in row]
        if cell_len(texts[0]) > NAME:
            texts[0] = set_cell_size(texts[0], NAME - 1).rstrip() + "…"
        return texts

    def _column(self, i: int, rows: list[list[str]]) -> list[str]:
        title = printable(self.columns[i].title) if self.titles else ""
        return [title, *(row[i] for row in rows)]

    def _line(self, row: list[str], beside: list[int], widths: list[int]) -> str:
        cells = []
        for i, width in zip(beside, widths, strict=True):
            space = " " * (width - cell_len(row[i]))
            cells.append(row[i] + space if self.columns[i].text or i == 0 else space + row[i])
        return "  ".join(cells).rstrip()

    def _pair(self, i: int, row: list[str]) -> str:
        if row[i] in ("", "-"):
            return ""
        title = printable(self.columns[i].title)
        return row[i] if self.columns[i].text else f"{title} {row[i]}"


def flow(texts: list[str], width: int) -> list[str]:
    """Texts one after the other, broken between two of them, or between words of a long one.

    >>> flow(["seconds 44.1", "gradients 250.8k", "a long text of words"], 30)
    ['seconds 44.1  gradients 250.8k', 'a long text of words']
    """
    lines: list[str] = []
    for text in texts:
        if lines and cell_len(lines[-1]) + 2 + cell_len(text) <= width:
            lines[-1] += f"  {text}"
            continue
        line = ""
        for word in text.split(" "):
            if line and cell_len(line) + 1 + cell_len(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
            while cell_len(line) > width:  # a name without spaces
                head = set_cell_size(line, width).rstrip(" ")
                lines.append(head)
                line = line[len(head) :]
        lines.append(line)
    return [line for line in lines if line]
