"""Tiny ImageNet: 200 classes of 64 x 64 pixels, from its unpacked archive, or from parquet files as
on public data hubs."""

from pathlib import Path

import numpy as np

from amata.data.cache import Decoded, cached, owned
from amata.data.class_names import first_words
from amata.data.framing import Framing
from amata.data.hold_out import shuffled
from amata.data.images import Arrays
from amata.data.limits import read_file
from amata.data.parquet import find_parts, join_parts, read_parquet
from amata.data.stack import decode_stack
from amata.errors import InputError, missing, shorten

SIZE = 64, 64
ANNOTATIONS = "val_annotations.txt"


def load_tinyimagenet(folder: Path) -> tuple[Arrays, Arrays]:
    """The 100,000 training images, and the 10,000 validation images as test set: the labels of the
    test images were not published."""
    for place in (folder / "tiny-imagenet-200", folder):
        if (place / "val" / ANNOTATIONS).is_file():
            return _read_folders(place)
    parts = [part for part in find_parts(folder) if part]
    if len(parts) == 2:
        return join_parts(
            lambda _: [read_parquet(part, SIZE) for part in parts], Framing(), 0, str(folder)
        )
    raise InputError(
        f"data tinyimagenet: {folder} has neither tiny-imagenet-200 nor train-*.parquet and "
        "valid-*.parquet; run `amata data fetch tinyimagenet` or set data.root to its folder"
    )


def _read_folders(root: Path) -> tuple[Arrays, Arrays]:
    """`train/ID/images/*.JPEG`, and `val/images/*.JPEG` with their ids in a text file."""
    ids = tuple(sorted(p.parent.name for p in (root / "train").glob("[!.]*/images/")))
    labels = {key: label for label, key in enumerate(ids)}
    names = _names(root / "words.txt", ids)
    train = [
        (p, labels[key]) for key in ids for p in sorted((root / "train" / key).glob("images/*.*"))
    ]
    annotations = root / "val" / ANNOTATIONS
    test = []
    for number, line in enumerate(_text(annotations).splitlines(), 1):
        name, key, *_ = (*line.split("\t"), "", "")
        if key not in labels or not name or Path(name).name != name:
            raise InputError(
                f"{annotations}, line {number}: {shorten(line, 60)!r} does not name an image and "
                f"one of the {len(ids)} classes in {root / 'train'}; fetch it again"
            )
        test.append((root / "val" / "images" / name, labels[key]))
    return _decode(train, names, root / "train"), shuffled(_decode(test, names, annotations))


def _names(words: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word of each class in words.txt, lines of an id, a tab and words; else its id."""
    if not words.is_file():
        return ids
    known = dict(line.split("\t", 1) for line in _text(words).splitlines() if "\t" in line)
    return first_words(ids, [known.get(key, key) for key in ids])


def _text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; fetch it again") from None


def _decode(images: list[tuple[Path, int]], names: tuple[str, ...], where: Path) -> Arrays:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "data tinyimagenet", "images") from None
    files = [path for path, _ in images]
    odd = next((path for path in files if not path.is_file()), None)
    if odd is not None or not files:
        raise InputError(f"data tinyimagenet: {odd or where} has no image; fetch it again")
    labels = np.array([label for _, label in images])

    def decode() -> Decoded:
        return Decoded(decode_stack(files, SIZE, lambda index: str(files[index])), labels)

    x = cached(files, {"frame": SIZE}, decode).images
    return Arrays(owned(x), labels, names=names, where=str(where))
