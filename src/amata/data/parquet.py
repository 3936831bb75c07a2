"""Parquet files of encoded images and their labels, as public data hubs serve them."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amata.data.cache import Decoded, cached
from amata.data.class_names import MOST_CLASSES, names_in_schema, read_classes
from amata.data.framing import Framing
from amata.data.hold_out import hold_out, shuffled
from amata.data.images import Arrays
from amata.data.limits import check_bytes
from amata.data.pixels import OtherSize
from amata.data.stack import Frame, decode_stack
from amata.errors import InputError, missing, shorten

RATIO, SLACK = 20, 1 << 18
"""Bytes that a byte of a parquet file may unpack to, and those that any file may."""
ROW = 128
"""Bytes that a row takes at least while it is read."""
TESTS = ("test", "validation", "valid", "val")
"""Names of the test part; the first that there is."""


class Columns(NamedTuple):
    """The columns of images and labels; None: the first known name that there is."""

    image: str | None = None
    label: str | None = None

    def find(self, names: Sequence[str], where: str) -> tuple[str, str]:
        return (
            _find("image", self.image, ("image", "img"), names, where),
            _find("label", self.label, ("label", "labels", "fine_label", "class"), names, where),
        )


FIND = Columns()


def _find(
    kind: str, chosen: str | None, known: tuple[str, ...], names: Sequence[str], where: str
) -> str:
    found = next((name for name in ([chosen] if chosen else known) if name in names), None)
    if found is None:
        raise InputError(
            f"{where} has no column {chosen or ' or '.join(known)}; set data.{kind}_column to one "
            f"of {shorten(', '.join(names) or 'its columns')}"
        )
    return found


@dataclass
class Encoded:
    """Images as files hold them, with their labels; filled one batch of rows at a time."""

    contents: list[bytes | Path] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    names: tuple[str, ...] | None = None
    size: int = 0

    def add(self, images: Any, labels: Any, where: Path | str, *, files: bool = False) -> None:
        """Add columns of a record batch. With `files`, an image may be the path of a file."""
        import pyarrow as pa

        paths = None
        if pa.types.is_struct(images.type):
            paths = images.field("path") if files else None
            images = images.field("bytes")
        if pa.types.is_dictionary(images.type) and not images.null_count:
            # A value that a file repeats is held once; the dictionary has those of earlier batches.
            used, order = np.unique(images.indices.to_numpy(), return_inverse=True)
            values = images.dictionary.take(pa.array(used)).to_pylist()
            self.size += sum(map(len, values)) + labels.nbytes
            found = [values[i] for i in order]
        else:
            self.size += images.nbytes + labels.nbytes
            found = images.to_pylist()
        check_bytes(self.size, where)
        if paths is not None:
            pairs = zip(found, paths.to_pylist(), strict=True)
            found = [Path(p) if b is None and p and Path(p).is_file() else b for b, p in pairs]
        contents = [content for content in found if isinstance(content, bytes | Path)]
        if len(contents) < len(labels):
            raise ValueError("its images are not bytes")
        if not pa.types.is_integer(labels.type) or labels.null_count:
            raise ValueError("its labels are not integers")
        self.contents += contents
        self.labels.append(labels.to_numpy(zero_copy_only=False).astype(np.int64))


Files = tuple[tuple[Path, int, int], ...]
"""Files with their modification times and sizes."""


@lru_cache(maxsize=2)  # a comparison loads the data once per run, and may have no cache on disk
def _decoded(files: Files, columns: Columns, frame: Frame) -> Decoded:
    settings = {"columns": columns, "frame": asdict(frame) if isinstance(frame, Framing) else frame}
    return cached([path for path, _, _ in files], settings, lambda: _decode(files, columns, frame))


def _decode(files: Files, columns: Columns, frame: Frame) -> Decoded:
    encoded, starts = Encoded(), []
    for path, _, _ in files:
        starts.append(len(encoded.contents))
        _read(path, columns, frame, encoded)

    def where(index: int) -> str:
        file = bisect_right(starts, index) - 1
        return f"{files[file][0]}, image {index - starts[file]}"

    if not encoded.contents:
        raise InputError(f"{files[0][0]} is not a parquet file of images: it has no rows")
    images = decode_stack(encoded.contents, frame, where)
    return Decoded(images, np.concatenate(encoded.labels), encoded.names)


def _read(path: Path, columns: Columns, frame: Frame, encoded: Encoded) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise missing("pyarrow", f"reading {path.name}", "images") from None
    try:
        file = pq.ParquetFile(path)
        rows, groups = file.metadata.num_rows, range(file.metadata.num_row_groups)
        size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
        least = 3 * frame[0] * frame[1] if isinstance(frame, tuple) else ROW
        check_bytes(max(size, least * rows), path)
        if size > RATIO * path.stat().st_size + SLACK:  # encoded images can hardly be compressed
            raise ValueError(f"it unpacks to more than {RATIO} times its size")
        schema = file.schema_arrow
        image, label = columns.find(schema.names, str(path))
        kind = schema.field(image).type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            leaf = f"{image}.bytes"
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            leaf = image
        else:
            raise ValueError(f"its column {shorten(image, 40)} holds {shorten(kind, 40)}")
        encoded.names = encoded.names or names_in_schema(schema.metadata, label)
        file = pq.ParquetFile(path, read_dictionary=[leaf])
        for batch in file.iter_batches(256, columns=[leaf, label]):
            encoded.add(batch.column(image), batch.column(label), path)
    except InputError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is truncated or not a parquet file of images and labels "
            f"({shorten(error)}); fetch it again"
        ) from None


def read_parquet(
    paths: Sequence[Path],
    frame: Frame,
    columns: Columns = FIND,
    names: Sequence[str] | None = None,
) -> Arrays:
    """The images of files. `names` of classes: by default those in the first file's schema, or in
    a classes.json beside it."""
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path} is not a file or is a broken link; fetch it again")
    files = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    images, labels, stored, sha256 = _decoded(files, columns, frame)
    beside = paths[0].with_name("classes.json")
    if names is None and beside.is_file():
        names = read_classes(beside)
    names = names or stored
    if names is None and labels.max() >= MOST_CLASSES:
        raise InputError(
            f"{paths[0]}: labels go up to {labels.max()}, and at most {MOST_CLASSES} classes are "
            "supported; set data.label_column to the column of labels"
        )
    where = str(paths[0])
    return Arrays(images.copy(), labels.copy(), names=names, where=where, sha256=sha256)


def find_parts(root: Path) -> tuple[list[Path], list[Path]]:
    """The files of the training and of the test part below a folder, or in its only folder that has
    any. A set without parts is all training; then, and without a test part, the second is empty."""
    if root.is_file():
        return [root], []
    if train := _part(root, "train"):
        test = next((found for name in TESTS if (found := _part(root, name))), [])
        odd = sorted(set(root.glob("*.parquet")) - set(train))
        if not test and odd:
            raise InputError(
                f"{odd[0]} is neither of the training nor of the test part; name it "
                "test-NUMBER.parquet, or move it away"
            )
        return train, test
    whole = sorted(root.glob("*.parquet"))
    if any(path.name.startswith(TESTS) for path in whole):
        raise InputError(f"{root} has {whole[0].name}, but no train-*.parquet; fetch it again")
    if whole:
        return whole, []
    below = [p for p in sorted(root.glob("[!.]*/")) if _part(p, "train")]
    if len(below) == 1:
        return find_parts(below[0])
    if below:
        raise InputError(
            f"{root} has several sets, {shorten(', '.join(p.name for p in below))}; set data.root "
            "to one of them"
        )
    return [], []


def _part(folder: Path, name: str) -> list[Path]:
    for pattern in (f"{name}-*.parquet", f"{name}.parquet", f"{name}/*.parquet"):
        if found := sorted(folder.glob(pattern)):
            return found
    return []


def load_parquet(
    root: Path, columns: Columns, framing: Framing | None, test_share: float
) -> tuple[Arrays, Arrays]:
    """Any parquet file, or folder of them. Without `framing` images are used as they are, and must
    have one size."""
    paths = [part for part in find_parts(root) if part]
    if not paths:
        raise InputError(
            f"data parquet: no parquet file in {root}; set data.root to a .parquet file, or to a "
            "folder of train-*.parquet and test-*.parquet"
        )
    return join_parts(
        lambda frame: [read_parquet(part, frame, columns) for part in paths],
        framing,
        test_share,
        str(root),
    )


def join_parts(
    read: Callable[[Frame], list[Arrays]], framing: Framing | None, test_share: float, where: str
) -> tuple[Arrays, Arrays]:
    """The training and the test images of what `read` gives: both parts, or one of which a share is
    held out."""
    try:
        parts = read(framing)
        if len({part.shape for part in parts}) > 1:
            raise OtherSize
    except OtherSize:
        raise OtherSize(
            f"{where}: its images have several sizes; set data.resize and data.crop to one size, "
            "as in --set data.resize=64 --set data.crop=64"
        ) from None
    if len(parts) == 1:
        return hold_out(parts[0], test_share, where)
    train, test = parts
    if train.names != test.names:  # numbers, of which one part may lack the last ones
        short, names = sorted((train.names, test.names), key=len)
        if names[: len(short)] != short:
            raise InputError(
                f"{where}: its training and its test part have different names of classes; give "
                "both in a classes.json"
            )
        train, test = (Arrays(p.x, p.y, names=names, ids=p.ids, where=where) for p in parts)
    return train, shuffled(test)
