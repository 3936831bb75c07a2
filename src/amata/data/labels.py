"""Tables of labels: a csv with a file and a label in each row."""

import csv
import io
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from amata.data.limits import read_file
from amata.data.listing import PARTS, Bad, Item, Layout, finished, refuse_parts, settle
from amata.errors import InputError, shorten

COLUMNS = {
    "file": ("file", "filename", "file_name", "path", "image"),
    "label": ("label", "class"),
    "split": ("split", "part"),
}
"""What a column may be called, in any case."""


class Row(NamedTuple):
    number: int
    """The first row is 1."""
    file: str
    label: str
    split: str


def find_csv(root: Path) -> Path | None:
    """labels.csv, or the only csv of a folder if it has a column of files and one of labels."""
    found = sorted(
        p for p in root.iterdir() if p.suffix.lower() == ".csv" and not p.name.startswith(".")
    )
    named = [path for path in found if path.name.lower() == "labels.csv"]
    if named:
        return named[0]
    if len(found) != 1 or not found[0].is_file():
        return None
    with found[0].open("rb") as file:
        first = file.readline(1 << 16).decode("utf-8-sig", "replace")
    columns = _columns(next(csv.reader([first], delimiter=_delimiter(first)), []))
    return found[0] if {"file", "label"} <= columns.keys() else None


def read_csv(path: Path) -> Layout:
    """The files that a csv names, relative to its folder and never outside of it."""
    rows = _rows(path)
    columns = _columns(rows[0])
    for column in ("file", "label"):
        if column not in columns:
            raise InputError(
                f"{path} has no column {' or '.join(COLUMNS[column])} in its first row; it has "
                f"{shorten(', '.join(rows[0]))}"
            )
    base = path.parent.resolve()
    table = [_row(n, row, columns, base) for n, row in enumerate(rows, 1) if any(row)][1:]
    refuse_parts(sorted({row.split for row in table if row.split not in PARTS}), str(path))
    names = sorted({row.label for row in table if row.label})
    if all(name.isascii() and name.isdigit() and len(name) < 18 for name in names):
        names.sort(key=int)
    order = {name: label for label, name in enumerate(names)}
    parts: dict[str, list[Item]] = {}
    bad: list[Bad] = []
    problems = _row_problems(path, table)
    for row in table:
        if row.file and row.label:
            file = path.parent / row.file
            if reason := _reason(file, base):
                bad.append(Bad(file, reason))
            else:
                parts.setdefault(PARTS[row.split], []).append(Item(file, order[row.label]))
    if parts and "train" not in parts:
        problems.append(f"{path} has no row of the split train")
    settled = settle({part: tuple(items) for part, items in parts.items()})
    for part, items in settled.items():
        there = {item.label for item in items}
        lacking = [name for name in names if order[name] not in there]
        if lacking:
            problems.append(f"{path}: no image of {', '.join(map(repr, lacking[:5]))} in {part}")
    how = "its column of splits" if "test" in settled else "a share of each class"
    sentence = f"a table of files and labels, {path.name}; the test set is {how}"
    return finished(path, "csv", sentence, tuple(names), settled, bad, (), problems)


def _rows(path: Path) -> list[list[str]]:
    try:
        text = read_file(path).decode("utf-8-sig")
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=_delimiter(text.partition("\n")[0])
        )
        rows = [[cell.strip() for cell in row] for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a csv in UTF-8 ({shorten(error)})") from None
    if len(rows) < 2:
        raise InputError(f"{path} is empty; it needs a first row file,label and a row per image")
    return rows


def _delimiter(first: str) -> str:
    return max(",;\t", key=first.count)


def _columns(header: list[str]) -> dict[str, int]:
    """The position of each column that the header has."""
    names = [name.strip().lower() for name in header]
    return {
        column: min(names.index(name) for name in known if name in names)
        for column, known in COLUMNS.items()
        if set(known) & set(names)
    }


def _row(number: int, cells: list[str], columns: dict[str, int], base: Path) -> Row:
    def cell(column: str) -> str:
        return cells[columns[column]] if columns[column] < len(cells) else ""

    split = cell("split").lower() if "split" in columns else "train"
    file = cell("file").replace("\\", "/")
    # One spelling of each path, so that a file that is named twice is found.
    return Row(number, file and _below(os.path.normpath(file), base), cell("label"), split)


def _below(file: str, base: Path) -> str:
    """An absolute path below the folder as a relative one; any other as it is."""
    folder, name = os.path.split(file)
    try:
        inside = Path(folder).resolve().relative_to(base) if os.path.isabs(file) else None
    except (OSError, RuntimeError, ValueError):  # elsewhere, or no path: _reason says so
        inside = None
    return file if inside is None else str(inside / name)


def _row_problems(path: Path, table: list[Row]) -> list[str]:
    problems = []
    for column in ("file", "label"):
        lacking = [str(row.number) for row in table if not getattr(row, column)]
        if lacking:
            more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            problems.append(f"{path}: no {column} in row {', '.join(lacking[:5])}{more}")
    twice = [file for file, n in Counter(row.file for row in table if row.file).items() if n > 1]
    if twice:
        problems.append(
            f"{path} names {len(twice)} files more than once, such as {shorten(twice[0])}; keep "
            "one row of each"
        )
    return problems


def _reason(file: Path, base: Path) -> str:
    """Why a file of a row cannot be used; empty if it can."""
    try:
        if not file.resolve().is_relative_to(base):
            return "is outside the folder of the csv"
        return "" if file.is_file() else "does not exist, or is not a regular file"
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null byte
        return f"is not a path ({shorten(error)})"
