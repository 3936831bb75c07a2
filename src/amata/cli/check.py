"""The report of an image folder, for `amata data check` and `amata init`."""

import os
import textwrap
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from amata.console import err, out
from amata.data.check import Check, check_folder
from amata.data.listing import relative
from amata.errors import InputError, shorten

MOST_CLASSES = 40
"""Classes in the table; of more, the smallest are shown."""
WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
"""Paths stay whole: they are there to be copied."""


def read_folder(root: Path) -> Check:
    """Check a folder, with a progress bar on a terminal."""
    columns = (TextColumn("reading images"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return check_folder(root, progress=update)


def print_check(check: Check) -> None:
    """The report, in 80 columns but for paths."""
    layout, counts = check.layout, check.counts
    totals = {part: check.total(part) for part in next(iter(counts.values()), {})}
    shown = ", ".join(f"{count:,} {part}" for part, count in totals.items())
    classes = "class" if len(counts) == 1 else "classes"
    out.print(f"folder  {layout.root.absolute()}", soft_wrap=True)
    lines = [
        ("layout", f"{layout.word}: {layout.sentence}"),
        ("images", f"{len(check.images):,} ({shown}) in {len(counts)} {classes}"),
    ]
    if check.images:
        low, middle, high = ("{} x {}".format(*check.sizes[k]) for k in ("min", "median", "max"))
        lines += [
            ("sizes", f"all {low}" if low == high else f"{low} to {high}, median {middle}"),
            ("pixels", ", ".join(f"{kind} {count:,}" for kind, count in check.kinds.items())),
        ]
    if check.copies:
        twice = sum(len(group) - 1 for group in check.copies)
        lines.append(("copies", f"{twice:,} of the files have the same bytes as another"))
    lines += [("hint", hint) for hint in check.hints]
    _print(lines)
    if check.images:
        out.print()
        out.print(_table(counts, totals))
        if (hidden := len(counts) - MOST_CLASSES) > 0:
            out.print(f"{hidden} larger classes are not shown; --json has all")
    if check.bad:
        out.print()
        _print([("bad", f"{len(check.bad):,} of the files cannot be used:")])
        for path, reason in check.bad:
            text = f"{relative(path, layout.root)} {reason}"
            width = out.width - 2 if out.windowed else 10_000
            for line in textwrap.wrap(text, width, subsequent_indent="  ", **WHOLE):
                out.print(f"  {line}", soft_wrap=True)
    _print([("problem", problem) for problem in check.problems])


def refuse_unusable(check: Check, *, skip_bad: bool) -> None:
    """The error of a folder that cannot be trained on, after its report."""
    reasons = [f"{n} problems"] if (n := len(check.problems)) > 1 else list(check.problems)
    if check.bad and not skip_bad:
        n = len(check.bad)
        files = (
            "1 file cannot be used: remove it"
            if n == 1
            else f"{n} files cannot be used: remove them"
        )
        reasons.append(f"{files}, or pass --skip-bad")
    if reasons:
        raise InputError(f"{check.layout.root} cannot be trained on: {'; '.join(reasons)}")


def looks_like_folder(text: str) -> bool:
    """Whether an argument is a path, and not the name of a data set."""
    return "/" in text or text.lower().endswith(".csv") or os.path.isdir(os.path.expanduser(text))


def _print(lines: list[tuple[str, str]]) -> None:
    for title, text in lines:
        for part in textwrap.wrap(text, min(out.width, 80) - 8, **WHOLE):
            out.print(f"{title:8}{part}", soft_wrap=True)
            title = ""


def _table(counts: dict[str, dict[str, int]], totals: dict[str, int]) -> Table:
    names = list(counts)
    if len(names) > MOST_CLASSES:
        names = sorted(names, key=lambda name: (counts[name]["train"], name))[:MOST_CLASSES]
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=True)
    numbers = sum(max(len(part), len(f"{total:,}")) + 2 for part, total in totals.items())
    width = min(54, out.width - numbers)
    table.add_column("class", "all", overflow="ellipsis", no_wrap=True, max_width=width)
    for part, total in totals.items():
        table.add_column(part, f"{total:,}", justify="right", no_wrap=True)
    for name in names:
        table.add_row(shorten(name, width), *(f"{counts[name][part]:,}" for part in totals))
    return table
