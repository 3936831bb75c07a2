"""Names of classes, as data sets publish them beside their images."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amata.errors import InputError, shorten

MOST_BYTES, MOST_CLASSES, LONGEST = 1 << 20, 100_000, 200


def check_names(names: Any) -> tuple[str, ...]:
    """A list of names; ValueError for anything else."""
    if not isinstance(names, list | tuple) or not 0 < len(names) <= MOST_CLASSES:
        raise ValueError(f"it is not a list of 1 to {MOST_CLASSES} names")
    if any(not isinstance(name, str) or not 0 < len(name) <= LONGEST for name in names):
        raise ValueError(f"its names are not texts of 1 to {LONGEST} characters")
    return tuple(names)


def numbered(count: int, where: str) -> tuple[str, ...]:
    """The numbers of classes that have no names. Labels that are numbers of something else, such as
    ids or times, would give more classes than memory holds."""
    if count > MOST_CLASSES:
        raise InputError(
            f"{where}: labels go up to {count - 1}, and at most {MOST_CLASSES} classes are "
            "supported; number the classes from 0"
        )
    return tuple(map(str, range(count)))


def first_words(ids: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """The first of the words that describe each class, as in "goldfish, Carassius auratus". If two
    classes share it, their ids are added."""
    firsts = [text.partition(",")[0].strip()[:LONGEST] for text in words]
    count = Counter(firsts)
    return tuple(
        first if first and count[first] == 1 else f"{first} ({key})".strip()
        for key, first in zip(ids, firsts, strict=True)
    )


def read_classes(path: Path) -> tuple[str, ...]:
    """The names in a classes.json: a list, or an object of name: label, of label: name, or of
    id: words in the order of the labels."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        found = json.loads(content)
        if not isinstance(found, dict):
            return check_names(found)
        by_label = {label: name for name, label in found.items() if type(label) is int}
        if not by_label:
            by_label = {int(key): name for key, name in found.items() if key.isdecimal()}
        if by_label:
            return check_names([by_label[label] for label in range(len(found))])
        if not all(isinstance(text, str) for text in found.values()):
            raise ValueError("its values are neither labels nor names")
        return check_names(first_words(list(found), list(found.values())))
    except KeyError as error:
        reason = f"no class has the label {error}"
    except (ValueError, RecursionError) as error:
        reason = shorten(error)
    raise InputError(f"{path} does not name classes ({reason}); correct or remove it")


def names_in_schema(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...] | None:
    """The names that the library `datasets` writes into the schema of a parquet file."""
    content = (metadata or {}).get(b"huggingface", b"")
    try:
        if len(content) > MOST_BYTES:
            return None
        return check_names(json.loads(content)["info"]["features"][column]["names"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
