"""Pages with generated parts (<!-- NAME --> ... <!-- end -->), and the tables and pictures in
them."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stored
from amata.report.figures import BLUE, GREEN, GREY, ORANGE, figure

Parts = Mapping[str, Callable[[], str]]
GRADIENTS = "gradients per image and epoch"
"""The column of gradient evaluations per training image and epoch."""


def filled(text: str, parts: Parts) -> str:
    """The page with every part generated again."""
    for name, write in parts.items():
        head, tail = text.split(f"<!-- {name} -->\n", 1)
        text = f"{head}<!-- {name} -->\n{write()}\n<!-- end -->{tail.split('<!-- end -->', 1)[1]}"
    return text


def refuse_others(about: str | None, *known: str) -> None:
    """Exit with the script's description if it gets an argument that it does not know."""
    unknown = [argument for argument in sys.argv[1:] if argument not in known]
    if unknown:
        sys.exit(f"error: unknown argument {unknown[0]!r}\n\n{about}")


def rewrite(pages: Mapping[Path, Parts], script: str) -> None:
    """Generate every part of every page; with --check, only compare."""
    new = {page: filled(page.read_text(), parts) for page, parts in pages.items()}
    if "--check" in sys.argv:
        stale = [page.name for page, text in new.items() if page.read_text() != text]
        if stale:
            sys.exit(
                f"error: {', '.join(stale)}: differs from the results; "
                f"run python evidence/{script}.py"
            )
        return
    for page, text in new.items():
        page.write_text(text)


def attack_name(attack: str) -> str:
    """As it is written on pages and in pictures."""
    if attack == "clean":
        return attack
    return attack.upper().replace("AUTOATTACK", "AutoAttack")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


@contextmanager
def picture(path: Path, columns: int, size: tuple[float, float], rows: int = 1) -> Iterator[Any]:
    """Axes side by side, row by row, saved as SVG."""
    with TemporaryDirectory() as folder:
        drawn = Path(folder) / path.stem
        with figure(drawn, rows, columns, size) as axes:
            yield axes.ravel()
        shutil.copy(drawn.with_suffix(".svg"), path)


def plot_robust_error(ax: Any, study: str, names: Mapping[str, str]) -> None:
    """Held-out robust error over training time, or over gradient evaluations where several runs
    shared the device: one line per run, one point per epoch."""
    for (title, name), colour in zip(names.items(), (GREY, ORANGE, BLUE, GREEN), strict=False):
        attack = stored.valid_attack(study, title)
        for seed, run in enumerate(stored.runs_of(study, title)):
            rows = stored.read_rows(run)[0]
            spent = stored.spent(study, run)
            seen = [
                (x, row["valid"]) for x, row in zip(spent, rows, strict=True) if row.get("valid")
            ]
            ax.plot(
                [x for x, _ in seen],
                [100 * (1 - valid[attack]) for _, valid in seen],
                color=colour,
                marker="o",
                ms=2.5,
                lw=1.2,
                label=name if seed == 0 else None,
            )
    seconds = "training seconds, one H200"
    xlabel = seconds if stored.timed(study) else "gradient evaluations per image"
    ax.set(xlabel=xlabel, ylabel="robust error, held-out images (%)")
    ax.set_xlim(0, None)
    ax.legend(frameon=False)
