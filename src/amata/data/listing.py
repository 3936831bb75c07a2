"""What a listing of labelled image files holds, whichever layout they have on disk."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from amata.errors import InputError, quoted

PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""What a folder or a split is called, in any case, and the part that it is."""
ACCEPTED = "train, val (or valid, validation) and test"
SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
}
FOREIGN = {".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef"}
"""Images of formats that are not read."""
IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
"""What systems leave in folders, besides hidden files."""


class Bad(NamedTuple):
    """A file that cannot be used."""

    path: Path
    reason: str
    """Ends a sentence that begins with the path: is a broken link."""


class Item(NamedTuple):
    """A labelled file."""

    path: Path
    label: int


@dataclass(frozen=True)
class Layout:
    """What is in a root. A root with `problems` cannot be trained on."""

    root: Path
    word: str
    sentence: str
    names: tuple[str, ...]
    """Of the classes."""
    parts: dict[str, tuple[Item, ...]]
    """The files of train, valid and test; without a test part, some of train are held out."""
    bad: tuple[Bad, ...] = ()
    """What cannot be an image, without looking into it."""
    problems: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(map(len, self.parts.values()))


def refuse_parts(names: Sequence[str], where: str) -> None:
    """Refuse unknown names of parts: images of an unknown part may be anything."""
    if names:
        raise InputError(
            f"data folder: {', '.join(map(repr, names[:5]))} beside train in {where}: unknown part "
            f"{'names' if len(names) > 1 else 'name'}; accepted are {ACCEPTED}; rename or move it"
        )


def settle(parts: dict[str, tuple[Item, ...]]) -> dict[str, tuple[Item, ...]]:
    """A validation part without a test part is the test set."""
    if "valid" in parts and "test" not in parts:
        parts = {("test" if part == "valid" else part): files for part, files in parts.items()}
    return parts


def finished(
    root: Path,
    word: str,
    sentence: str,
    names: tuple[str, ...],
    parts: dict[str, tuple[Item, ...]],
    bad: Iterable[Bad],
    empty: Sequence[str] = (),
    problems: Sequence[str] = (),
) -> Layout:
    """A layout with the problems that every kind of it may have. `empty` names folders of classes
    that have no image."""
    found, bad = list(problems), sorted(bad)
    if not any(parts.values()):
        hint = "data.root needs one folder of images per class"
        if any(root.glob("*.parquet")):
            hint = "it has parquet files: set data.name=parquet"
        elif bad:
            hint = f"{len(bad)} files cannot be used, such as {bad[0].path}: it {bad[0].reason}"
        found = [f"no image below {root}; {hint}"]
    elif empty:
        more = f" and {len(empty) - 10} more" if len(empty) > 10 else ""
        found.append(f"no image in {', '.join(empty[:10])}{more}; add images, or remove the class")
    elif len(names) < 2:
        inner = root / names[0]
        nested = inner.is_dir() and len(entries(inner)[0]) > 1
        found.append(
            f"one class only, {names[0]!r}; "
            + (
                f"set data.root to {inner}, which has folders"
                if nested
                else "a classifier needs at least two"
            )
        )
    return Layout(root, word, sentence, names, parts, tuple(bad), tuple(found))


def relative(path: Path, root: Path) -> str:
    """A path as it is shown: below the root, or below the folder of a csv."""
    base = root.parent if root.suffix.lower() == ".csv" and not root.is_dir() else root
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def bad_files(bad: Sequence[Bad], root: Path) -> InputError:
    """All files that cannot be used, as one line."""
    if len(bad) == 1:
        what, them = f"{bad[0].path} {bad[0].reason}", "it"
    else:
        shown = ", ".join(f"{relative(path, root)} {reason}" for path, reason in bad[:3])
        more = f", and {len(bad) - 3} more" if len(bad) > 3 else ""
        what, them = f"{len(bad)} files of {root} cannot be used: {shown}{more}", "them"
    return InputError(
        f"{what}; remove {them} (`amata data check {quoted(root)}` lists all), or set "
        f"data.skip_bad = true to go on without {them}"
    )


def entries(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The folders, the files, and what is neither, sorted and without what systems leave there."""
    folders: list[Path] = []
    files: list[Path] = []
    others: list[Path] = []
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith(".") or entry.name.lower() in IGNORED:
                continue
            path = Path(entry)
            # Listing a folder tells files and folders apart; only links need another look.
            if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and path.is_dir()):
                folders.append(path)
            elif entry.is_file(follow_symlinks=False) or path.is_file():
                files.append(path)
            else:
                others.append(path)
    return sorted(folders), sorted(files), sorted(others)
