"""Corruption sets (Hendrycks and Dietterich 2019, arXiv 1903.12261): CIFAR-10-C and CIFAR-100-C.

A folder of NAME.npy for each corruption, uint8 of shape (5 N, H, W, C): the same N test images at
severity 1 to 5, one severity after the other; and labels.npy, their 5 N labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from amata.data.images import check_labels
from amata.data.limits import check_bytes
from amata.errors import InputError, shorten

SEVERITIES = 5
STANDARD = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The corruptions of the benchmark, which its mean is over."""
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Those that are meant for tuning."""
FOLDERS = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
"""The corruption set of each data set, as its archive calls it."""


@dataclass(frozen=True)
class Corruptions:
    """A corruption set on disk; images are read as they are used."""

    files: dict[str, Path]
    """By corruption: the standard ones, then the extra ones."""
    labels: np.ndarray
    """Of the N images, at any severity."""

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, corruption: str, severity: int) -> np.ndarray:
        """The N images (N, H, W, C), as an array that is read from disk."""
        start = (severity - 1) * len(self)
        return _load(self.files[corruption])[start : start + len(self)]


def open_corruptions(folder: Path, shape: tuple[int, int, int], classes: int) -> Corruptions:
    """The corruption set in a folder, for images of this shape. The headers of all its files are
    checked."""
    known = [name for name in (*STANDARD, *EXTRA) if (folder / f"{name}.npy").is_file()]
    absent = [name for name in STANDARD if name not in known]
    if absent:
        others = f" and {len(absent) - 1} others" if len(absent) > 1 else ""
        raise InputError(f"{folder} has no {absent[0]}.npy{others}; fetch it again")
    files = {name: folder / f"{name}.npy" for name in known}
    path = folder / "labels.npy"
    labels = _load(path)
    check_bytes(labels.nbytes, path)
    n = len(labels) // SEVERITIES if labels.ndim == 1 else 0
    if n == 0 or len(labels) % SEVERITIES or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{path} does not hold labels of {SEVERITIES} severities; fetch it again")
    blocks = labels.astype(np.int64).reshape(SEVERITIES, n)
    if (blocks != blocks[0]).any():
        raise InputError(f"{path}: the severities have different labels; fetch it again")
    check_labels(torch.from_numpy(blocks[0]), classes, str(path))
    channels, height, width = shape
    expected = (len(labels), height, width, channels)
    for file in files.values():
        images = _load(file)
        if images.dtype != np.uint8 or images.shape != expected:
            raise InputError(
                f"{file} has {images.dtype} of shape {images.shape}, not uint8 of {expected}, as "
                "labels.npy and the data say"
            )
    return Corruptions(files, blocks[0])


def _load(path: Path) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"{path} is not a file; fetch it again")
    try:
        return np.lib.format.open_memmap(path, mode="r")  # refuses pickles
    except Exception as error:  # of many kinds: the header is a Python literal
        raise InputError(
            f"{path} is truncated or not a .npy file of numbers ({shorten(error)}); fetch it again"
        ) from None


def find_corruptions(data: str, roots: Sequence[Path], chosen: str | None = None) -> Path:
    """The folder of the corruption set of the data set `data`: the folder `chosen`, or where it was
    fetched or unpacked, in one of the folders of data sets or beside it."""
    if chosen is not None:
        places = [Path(chosen).expanduser()]
    elif data in FOLDERS:
        around = [folder for root in roots for folder in (root, root.parent)]
        places = [p / inner / FOLDERS[data] for p in around for inner in ("", f"{data}-c")]
    else:
        raise InputError(
            f"there is no corruption set of data {shorten(data, 80)}; set eval.corruptions to a "
            "folder of .npy files"
        )
    for place in places:
        if (place / "labels.npy").is_file():
            return place
    if chosen is not None:
        raise InputError(f"eval.corruptions = {chosen}: no labels.npy in this folder")
    raise InputError(
        f"no folder {FOLDERS[data]} in {roots[0]}; run `amata data fetch {data}-c`, or set "
        "eval.corruptions to it"
    )
