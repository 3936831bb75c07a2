"""Layouts of image folders: where the classes are, and which files are for training and testing.

| word | layout |
|---|---|
| classes | `root/CLASS/*`: a share of each class is held out as test set |
| parts | `root/train/CLASS/*` with a validation or a test part, or both |
| train | `root/train/CLASS/*` alone: a share of each class is held out as test set |
| csv | a table of files and labels, with an optional split |

With both a validation and a test part, the validation part is the validation split. One of them
alone is the test set.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from amata.data.labels import find_csv, read_csv
from amata.data.listing import (
    FOREIGN,
    PARTS,
    SUFFIXES,
    Bad,
    Item,
    Layout,
    entries,
    finished,
    refuse_parts,
    settle,
)
from amata.errors import InputError


def find_layout(root: Path) -> Layout:
    """The layout of a folder, or of a csv. A root that has none is an error."""
    if root.suffix.lower() == ".csv" and root.is_file():
        return read_csv(root)
    if not root.is_dir():
        raise InputError(
            f"data folder: no folder {root}; set data.root to a folder with one folder per class, "
            "as in --set data.root=FOLDER"
        )
    if (csv := find_csv(root)) is not None:
        return read_csv(csv)
    folders, files, links = entries(root)
    # A class may be called train as well: then images are in it, and no folders.
    parts = [f for f in folders if f.name.lower() in PARTS and entries(f)[0]]
    if parts:
        return _in_parts(root, folders, parts, links)
    if folders and all(f.name.lower() in PARTS for f in folders):
        shown = " and ".join(f"{f.name}/" for f in folders)
        raise InputError(
            f"data folder: {root} has {shown} without class folders in them; move the images of "
            f"each class into a folder of its own, as in {folders[0].name}/CLASS/"
        )
    if not folders and any(_is_image(f) for f in files):
        raise InputError(
            f"data folder: {root} holds images but no class folders; move the images of each class "
            "into a folder of its own, or add a labels.csv with the columns file,label"
        )
    items, bad, empty = _classes(folders)
    names = tuple(f.name for f in folders)
    sentence = "one folder per class; a share of each class is the test set"
    return finished(
        root, "classes", sentence, names, {"train": items}, [*_broken(links), *bad], empty
    )


def _in_parts(root: Path, folders: list[Path], parts: list[Path], links: list[Path]) -> Layout:
    """Class folders within train, and within a validation or a test part."""
    found: dict[str, Path] = {}
    for folder in parts:
        part = PARTS[folder.name.lower()]
        if part in found:
            raise InputError(
                f"data folder: {root} has two folders for one part, {found[part].name}/ and "
                f"{folder.name}/; keep one of them"
            )
        found[part] = folder
    refuse_parts([f"{f.name}/" for f in folders if f not in parts], str(root))
    if "train" not in found:
        raise InputError(
            f"data folder: {root} has {parts[0].name}/ but no train/; the folders of the classes "
            "belong in train/"
        )
    classes = {part: entries(folder)[0] for part, folder in found.items()}
    names = tuple(f.name for f in classes["train"])
    files: dict[str, tuple[Item, ...]] = {}
    bad, empty, problems = _broken(links), [], []
    for part, folder in found.items():
        own = tuple(f.name for f in classes[part])
        if own != names:
            problems.append(_different(found["train"], names, folder, own))
        files[part], odd, without = _classes(classes[part], names)
        loose = sum(map(_is_image, entries(folder)[1]))
        if loose:
            problems.append(
                f"{loose} images lie directly in {folder}, in no class folder; move or remove them"
            )
        bad += [*_broken(entries(folder)[2]), *odd]
        empty += without
    files = settle(files)
    own_names = {part: found[part].name for part in found}
    if "valid" in files:
        about = f"{own_names['valid']}/ is the validation split, {own_names['test']}/ the test set"
    elif "test" in files:
        about = f"{next(found[p].name for p in ('test', 'valid') if p in found)}/ is the test set"
    else:
        about = "a share of each class is the test set"
    word = "parts" if "test" in files else "train"
    sentence = f"one folder per class in {found['train'].name}/; {about}"
    return finished(root, word, sentence, names, files, bad, empty, problems)


def _classes(
    folders: list[Path], names: Sequence[str] | None = None
) -> tuple[tuple[Item, ...], list[Bad], list[str]]:
    """The images of these class folders, what else is in them, and which are empty. Labels follow
    `names`, by default those of the folders."""
    order = {name: label for label, name in enumerate(names or [f.name for f in folders])}
    items: list[Item] = []
    bad: list[Bad] = []
    empty: list[str] = []
    own = {folder.resolve() for folder in folders if not folder.is_symlink()}
    for folder in folders:
        images, odd = images_below(folder)
        target, above = folder.resolve(), folder.parent.resolve()
        if folder.is_symlink() and (target in own or above.is_relative_to(target)):
            # Its images would be in two classes.
            images, odd = [], [Bad(folder, "is a link to another class, or to a folder above")]
        bad += odd
        if not images:
            empty.append(f"{folder.parent.name}/{folder.name}")
        items += [Item(path, order[folder.name]) for path in images if folder.name in order]
    return tuple(items), bad, empty


def images_below(folder: Path) -> tuple[list[Path], list[Bad]]:
    """The images in a folder and its folders, and what is something else."""
    images: list[Path] = []
    bad: list[Bad] = []
    waiting = [folder]
    while waiting:
        folders, files, others = entries(waiting.pop())
        linked = [path for path in folders if path.is_symlink()]
        waiting += [path for path in folders if not path.is_symlink()]
        images += [path for path in files if _is_image(path)]
        bad += [Bad(path, _not_read(path)) for path in files if not _is_image(path)]
        bad += [Bad(path, "is a link to a folder") for path in linked]
        bad += _broken(others)
    return sorted(images), bad


def _not_read(path: Path) -> str:
    if path.suffix.lower() in FOREIGN:
        return f"is of a format that is not read ({path.suffix}): convert it to JPEG or PNG"
    return "has no suffix of an image"


def _broken(paths: Iterable[Path]) -> list[Bad]:
    return [
        Bad(path, "is a broken link" if path.is_symlink() else "is not a regular file")
        for path in paths
    ]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _different(one: Path, names: Sequence[str], other: Path, own: Sequence[str]) -> str:
    sides = [
        f"{', '.join(map(repr, sorted(only)[:5]))} {'are' if len(only) > 1 else 'is'} only in "
        f"{folder.name}/"
        for folder, only in ((one, set(names) - set(own)), (other, set(own) - set(names)))
        if only
    ]
    return f"{one} and {other} have different classes; {', '.join(sides)}"
