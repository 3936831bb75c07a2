"""A page whose marked parts are written from files: <!-- NAME --> ... <!-- end -->. And what stands
on it: tables and pictures."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amata.report.figures import figure

Parts = dict[str, Callable[[], str]]


def filled(text: str, parts: Parts) -> str:
    """The page with every part written anew."""
    for name, write in parts.items():
        head, tail = text.split(f"<!-- {name} -->\n", 1)
        text = f"{head}<!-- {name} -->\n{write()}\n<!-- end -->{tail.split('<!-- end -->', 1)[1]}"
    return text


def refuse_others(about: str | None, *known: str) -> None:
    """End with the tool's own description where it is given an argument that it does not know."""
    if any(argument not in known for argument in sys.argv[1:]):
        sys.exit(f"error: this is not understood\n\n{about}")


def rewrite(pages: dict[Path, Parts], tool: str) -> None:
    """Write every part of every page anew; with --check only say whether the pages are what they
    would be."""
    new = {page: filled(page.read_text(), parts) for page, parts in pages.items()}
    if "--check" in sys.argv:
        stale = [page.name for page, text in new.items() if page.read_text() != text]
        sys.exit(
            f"error: {', '.join(stale)}: not what the results say; run python evidence/{tool}.py"
            if stale
            else 0
        )
    for page, text in new.items():
        page.write_text(text)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


@contextmanager
def picture(path: Path, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Plots side by side, to be drawn on; kept as SVG alone."""
    with TemporaryDirectory() as folder:
        drawn = Path(folder) / path.stem
        with figure(drawn, 1, columns, size) as axes:
            yield axes[0]
        shutil.copy(drawn.with_suffix(".svg"), path)
