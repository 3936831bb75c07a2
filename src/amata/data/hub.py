"""Data sets of the Hugging Face Hub, loaded by the package `datasets`: `hf/NAME`, or
`hf/OWNER/NAME:CONFIG`."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np

from amata.data.class_names import check_names
from amata.data.framing import Framing
from amata.data.images import Arrays
from amata.data.parquet import TESTS, Columns, Encoded, join_parts
from amata.data.stack import Frame, decode_stack
from amata.errors import InputError, missing, shorten

PREFIX = "hf/"
NAME = re.compile(r"hf/(\w[\w.-]*(?:/\w[\w.-]*)?)(?::(\w[\w.+-]*))?", re.ASCII)


def parse_hub(name: str) -> tuple[str, str | None]:
    """The data set and its config that `name` means."""
    match = NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"data.name = {shorten(name, 80)!r} must be hf/NAME or hf/OWNER/NAME, with an optional "
            ":CONFIG"
        )
    return match[1], match[2]


def load_hub(
    name: str, columns: Columns, framing: Framing | None, test_share: float
) -> tuple[Arrays, Arrays]:
    """The training and the test images of a data set with a column of images and one of labels."""
    path, config = parse_hub(name)
    try:
        import datasets
    except ImportError:
        raise missing("datasets", f"data {name}", "hub") from None
    options: dict[str, Any] = {"name": config}
    if "trust_remote_code" in inspect.signature(datasets.load_dataset).parameters:
        options["trust_remote_code"] = False  # later versions of the package run no code
    try:
        found = datasets.load_dataset(path, **options)
    except Exception as error:  # of many kinds: no such name, no connection, several configs
        raise InputError(
            f"data {name} cannot be loaded ({shorten(error)}); check the name, its :CONFIG and the "
            "connection"
        ) from None
    train = next((part for part in ("train", *found) if part in found), None)
    test = next((part for part in TESTS if part in found), None)
    if train is None or train == test or (train != "train" and len(found) > 1):
        raise InputError(f"data {name} has the parts {shorten(', '.join(found))}, but no train")
    parts = [_encoded(found[part], f"{name} {part}", columns) for part in (train, test) if part]
    return join_parts(
        lambda frame: [_arrays(part, frame) for part in parts], framing, test_share, name
    )


def _encoded(part: Any, where: str, columns: Columns) -> tuple[str, Encoded]:
    import datasets
    import pyarrow as pa

    image, label = columns.find(part.column_names, f"data {where}")
    encoded = Encoded()
    try:
        names = getattr(part.features[label], "names", None)
        encoded.names = check_names(names) if names else None
        if isinstance(part.features[image], datasets.Image):
            part = part.cast_column(image, datasets.Image(decode=False))
        for table in part.select_columns([image, label]).with_format("arrow").iter(256):
            for batch in table.to_batches():
                encoded.add(batch.column(image), batch.column(label), where, files=True)
        if not encoded.contents:
            raise ValueError("it has no rows")
    except InputError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"data {where} does not hold images and labels ({shorten(error)}); set "
            "data.image_column and data.label_column"
        ) from None
    return where, encoded


def _arrays(part: tuple[str, Encoded], frame: Frame) -> Arrays:
    where, encoded = part
    x = decode_stack(
        encoded.contents,
        frame,
        lambda i: f"{c if isinstance(c := encoded.contents[i], Path) else f'{where}, image {i}'}",
    )
    return Arrays(x, np.concatenate(encoded.labels), names=encoded.names, where=where)
