"""Data sets by name, in memory or on disk, and the loader of their batches."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amata.data.datasets import DATASETS, DataSet, find_dataset
from amata.data.feed import Feed
from amata.data.folder import Folder, Framing, load_folder
from amata.data.forms import as_images
from amata.data.images import Arrays, ImageSet, Loader, labels_of, split_validation
from amata.data.map_style import MapStyle
from amata.data.stream import Stream
from amata.errors import InputError

__all__ = [
    "DATASETS",
    "Arrays",
    "DataSet",
    "Feed",
    "Folder",
    "Framing",
    "ImageSet",
    "Loader",
    "MapStyle",
    "Splits",
    "Stream",
    "as_images",
    "data_root",
    "find_dataset",
    "labels_of",
    "load",
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
    labels or paths, `train_pixels` and `test_pixels` of their content."""

    def record(self) -> dict[str, Any]:
        """Which images the run uses, in short: a folder may change before the run is resumed."""
        return {
            "classes": list(self.train.names),
            "shape": list(self.train.shape),
            "train": len(self.train),
            "valid": len(self.held_out),
            "valid_ids": self.held_out,
            **self.hashes,
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
) -> Splits:
    """The data set `name`. Of its training images `valid` (a number or a share) are held out, at
    most `limit` of the others are kept."""
    entry = find_dataset(name)
    base = Path(os.path.expanduser(root)) if root else data_root()
    try:
        train, test, hashes = _read(name, entry, base, framing, workers, in_memory, test_share)
    except OSError as error:
        raise InputError(
            f"data {name}: {error.filename or base} cannot be read ({error.strerror or error}); "
            "set data.root to a folder that can be read"
        ) from None
    train, held, ids = split_validation(train, valid, seed, limit)
    return Splits(train, held, test, ids, hashes)


def _read(
    name: str,
    entry: DataSet,
    base: Path,
    framing: Framing | None,
    workers: int,
    in_memory: bool,
    test_share: float,
) -> tuple[ImageSet, ImageSet, dict[str, str]]:
    """The training images, the test images, and their hashes."""
    train: ImageSet
    test: ImageSet
    if entry.loader is not None:
        arrays = entry.loader(base / name if (base / name).is_dir() else base)
        identities = [part.y.numpy().tobytes() for part in arrays]
        contents = [part.sha256() for part in arrays]
        train, test = arrays
    elif name == "folder":
        folders = load_folder(base, framing or Framing(), workers, test_share)
        identities = [part.identity() for part in folders]
        contents = [part.sha256() for part in folders]
        train, test = (part.in_memory() if in_memory else part for part in folders)
    else:
        raise InputError(
            f"data {name} is read as an image folder: use the data set folder, with the folder of "
            "its class folders as root"
        )
    hashes = {}
    for part, identity, content in zip(("train", "test"), identities, contents, strict=True):
        hashes[f"{part}_hash"] = hashlib.sha256(identity).hexdigest()[:16]
        hashes[f"{part}_pixels"] = content[:16]
    return train, test, hashes
