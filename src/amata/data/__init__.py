"""Data sets by name, in memory or on disk, and the loader of their batches."""

import hashlib
import os
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amata.data.datasets import DATASETS, DataSet, find_dataset
from amata.data.feed import Feed
from amata.data.folder import Folder, Loaded, load_folder
from amata.data.forms import as_images
from amata.data.framing import Framing
from amata.data.hub import PREFIX, load_hub
from amata.data.image_file import Picture, read_image
from amata.data.images import Arrays, ImageSet, Loader, labels_of, split_validation
from amata.data.map_style import MapStyle
from amata.data.parquet import FIND, Columns, load_parquet
from amata.data.sharing import read_once, shared_data
from amata.data.stream import Stream
from amata.errors import InputError

__all__ = [
    "DATASETS",
    "Arrays",
    "Columns",
    "DataSet",
    "Feed",
    "Folder",
    "Framing",
    "ImageSet",
    "Loader",
    "MapStyle",
    "Picture",
    "Splits",
    "Stream",
    "as_images",
    "data_root",
    "find_dataset",
    "labels_of",
    "load",
    "read_image",
    "shared_data",
    "split_validation",
]


@dataclass(frozen=True)
class Splits:
    """The training, validation and test images of a run."""

    train: ImageSet
    valid: ImageSet | None
    test: ImageSet
    held_out: list[int]
    """Ids of the validation images."""
    hashes: dict[str, str]
    """Hashes that identify the training and the test images: `train_hash` and `test_hash` of their
    labels or paths, `train_pixels` and `test_pixels` of their content. A folder's own validation
    part has such hashes too."""
    skipped: int = 0
    """Files of a folder that could not be used (`data.skip_bad`)."""

    def record(self) -> dict[str, Any]:
        """Which images the run uses, in short: a folder may change before the run is resumed."""
        return {
            "classes": list(self.train.names),
            "shape": list(self.train.shape),
            "train": len(self.train),
            "valid": len(self.held_out),
            "valid_ids": self.held_out,
            **self.hashes,
            **({"skipped": self.skipped} if self.skipped else {}),
        }


def data_root() -> Path:
    """The folder of data sets: $AMATA_DATA, or ~/.cache/amata."""
    return Path(os.path.expanduser(os.environ.get("AMATA_DATA") or "~/.cache/amata"))


def load(
    name: str,
    *,
    root: str | Path | None = None,
    valid: float = 0,
    limit: int | None = None,
    seed: int = 0,
    framing: Framing | None = None,
    workers: int = 0,
    in_memory: bool = False,
    test_share: float = 0.2,
    columns: Columns = FIND,
    skip_bad: bool = False,
) -> Splits:
    """The data set `name`. Of its training images `valid` (a number or a share) are held out, at
    most `limit` of the others are kept. A folder with a validation part has its own."""
    entry = find_dataset(name)
    if not root and name in ("folder", "parquet"):
        raise InputError(
            f"data {name} needs the folder of the images; set data.root (--set data.root=FOLDER)"
        )
    base = Path(os.path.expanduser(root)) if root else data_root()
    key = name, base, framing, workers if name == "folder" else 0, test_share, columns, skip_bad
    try:
        if name == "folder":
            used = framing or Framing()
            loaded = read_once(
                key, lambda: load_folder(base, used, workers, test_share, skip_bad=skip_bad)
            )
            return _folder_splits(loaded, key, in_memory, valid, seed, limit)
        train, test, hashes = read_once(
            key, lambda: _read(name, entry, base, framing, test_share, columns)
        )
    except OSError as error:
        raise InputError(
            f"data {name}: {error.filename or base} cannot be read ({error.strerror or error}); "
            "set data.root to a folder that can be read"
        ) from None
    rest, held, ids = split_validation(train, valid, seed, limit)
    return Splits(rest, held, test, ids, hashes)


def _folder_splits(
    loaded: Loaded, key: Hashable, in_memory: bool, valid: float, seed: int, limit: int | None
) -> Splits:
    """`key` identifies the folder and how it is read."""
    parts = {"train": loaded.train, "test": loaded.test}
    if loaded.valid is not None:
        if valid:
            raise InputError(
                f"data.valid = {valid}, but {loaded.train.root} has its own validation part; set "
                "data.valid = 0"
            )
        parts["valid"] = loaded.valid
    hashes = read_once(
        (key, "hashes"),
        lambda: _hashes({part: (f.identity(), f.sha256()) for part, f in parts.items()}),
    )
    images = read_once((key, in_memory), lambda: _in_memory(parts) if in_memory else {**parts})
    train, held, ids = split_validation(images["train"], valid, seed, limit)
    if "valid" in images:
        held, ids = images["valid"], images["valid"].ids.tolist()
    return Splits(train, held, images["test"], ids, hashes, loaded.skipped)


def _in_memory(parts: dict[str, Folder]) -> dict[str, ImageSet]:
    return {part: folder.in_memory() for part, folder in parts.items()}


def _read(
    name: str,
    entry: DataSet,
    base: Path,
    framing: Framing | None,
    test_share: float,
    columns: Columns,
) -> tuple[Arrays, Arrays, dict[str, str]]:
    """The training images, the test images, and their hashes."""
    if entry.loader is not None:
        train, test = entry.loader(base / name if (base / name).is_dir() else base)
    elif name == "parquet":
        train, test = load_parquet(base, columns, framing, test_share)
    elif name.startswith(PREFIX):
        train, test = load_hub(name, columns, framing, test_share)
    elif entry.corrupts:
        raise InputError(
            f"data {name} is for evaluation: train on {entry.corrupts}, then `amata eval RUN "
            "--attacks clean,corruptions`"
        )
    else:
        raise InputError(
            f"data {name} is read as an image folder: use the data set folder, with the folder of "
            "its class folders as root"
        )
    parts = {"train": train, "test": test}
    hashes = _hashes({part: (a.y.numpy().tobytes(), a.sha256()) for part, a in parts.items()})
    return train, test, hashes


def _hashes(parts: dict[str, tuple[bytes, str]]) -> dict[str, str]:
    """From the identity and the content of each part."""
    hashes = {}
    for part, (identity, content) in parts.items():
        hashes[f"{part}_hash"] = hashlib.sha256(identity).hexdigest()[:16]
        hashes[f"{part}_pixels"] = content[:16]
    return hashes
