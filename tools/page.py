"""A page whose marked parts are written from files: <!-- NAME --> ... <!-- end -->. And what stands on it: tables and pictures."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """Write every part of every page anew; with --check only say whether the pages are what they would be."""
    new = {page: filled(page.read_text(), parts) for page, parts in pages.items()}
    if "--check" in sys.argv:
        stale = [page.name for page, text in new.items() if page.read_text() != text]
        sys.exit(f"error: {', '.join(stale)}: not what the results say; run python tools/{tool}.py" if stale else 0)
    for page, text in new.items():
        page.write_text(text)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


@contextmanager
def picture(path: Path, columns: int, width: float, height: float) -> "Iterator[list[Axes]]":
    """Plots side by side, to be drawn on; the same ones always give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "amata"}):
        figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained", squeeze=False)
        figure.patch.set_facecolor("white")
        yield list(axes[0])
        for ax in axes[0]:
            ax.grid(alpha=0.25)
            ax.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
