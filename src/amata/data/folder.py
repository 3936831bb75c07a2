"""Image folders, one folder per class (Caltech-256, ImageNet), decoded in worker processes."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amata.data.images import Arrays, Draw
from amata.errors import InputError, missing
from amata.seeds import derive, generator

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".ppm", ".tif", ".tiff"}
SAMPLED, MOST_READ = 256, 1 << 24  # files of a folder, and bytes of a file, that its hash reads


@dataclass(frozen=True)
class Framing:
    """Resize the shorter side to `resize`, then crop a square of side `crop`: from the centre, or
    at random in training.

    `random_scale` draws ImageNet's random-resized crop instead: 0.08 to 1 of the area, at an aspect
    ratio of 3/4 to 4/3.
    """

    resize: int = 256
    crop: int = 224
    random_scale: bool = False

    def __post_init__(self) -> None:
        if self.crop > self.resize:
            raise InputError(f"data.crop = {self.crop} is larger than data.resize = {self.resize}")

    def apply(self, image: Any, rng: np.random.Generator | None) -> np.ndarray:
        if rng is not None and self.random_scale:
            box = self._random_box(image.width, image.height, rng)
            return np.asarray(image.resize((self.crop, self.crop), box=box))
        scale = self.resize / min(image.width, image.height)
        width, height = (
            max(self.resize, round(image.width * scale)),
            max(self.resize, round(image.height * scale)),
        )
        image = image.resize((width, height))
        spare_x, spare_y = width - self.crop, height - self.crop
        left, top = (
            (spare_x // 2, spare_y // 2)
            if rng is None
            else (rng.integers(spare_x + 1), rng.integers(spare_y + 1))
        )
        return np.asarray(image.crop((left, top, left + self.crop, top + self.crop)))

    @staticmethod
    def _random_box(
        width: int, height: int, rng: np.random.Generator
    ) -> tuple[float, float, float, float]:
        for _ in range(10):
            area = width * height * rng.uniform(0.08, 1)
            aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
            if w <= width and h <= height:
                left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
                return left, top, left + w, top + h
        side = min(width, height)  # no window fits: the central square
        return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


@dataclass(frozen=True)
class Folder:
    """A folder of class folders, read lazily. Classes are the sorted folder names."""

    files: tuple[Path, ...]
    labels: Tensor
    ids: Tensor
    names: tuple[str, ...]
    framing: Framing
    workers: int
    channels: int = 3
    random_crops: ClassVar[bool] = True
    """Every training read crops another window, so methods cannot store anything per pixel."""

    @property
    def classes(self) -> int:
        return len(self.names)

    def __len__(self) -> int:
        return len(self.files)

    def identity(self) -> bytes:
        """Class and path of every image: bytes that identify the set without reading it."""
        places = (
            os.fsencode(f"{label}/{file.parent.name}/{file.name}")
            for label, file in zip(self.labels.tolist(), self.files, strict=True)
        )
        return b"\n".join(places)

    def sha256(self) -> str:
        """A hash of the sizes of all files, and of the content of `SAMPLED` files drawn with a
        fixed seed: reading every file of a large folder takes too long."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(b"%d " % file.stat().st_size)
        drawn = torch.randperm(len(self), generator=generator("content"))[:SAMPLED]
        for position in drawn.tolist():
            with self.files[position].open("rb") as file:
                digest.update(file.read(MOST_READ))
        return digest.hexdigest()

    def subset(self, positions: Tensor) -> "Folder":
        files = tuple(self.files[i] for i in positions.tolist())
        return replace(self, files=files, labels=self.labels[positions], ids=self.ids[positions])

    def in_memory(self) -> Arrays:
        """The same images decoded once, centre-cropped."""
        if self.framing.random_scale:
            raise InputError(
                "data.in_memory keeps one crop of each image, data.random_scale draws many; turn "
                "one of them off"
            )
        positions = torch.arange(len(self))
        parts = [
            (255 * x).round().byte()
            for x, _ in self.read(positions.split(256), torch.device("cpu"), None)
        ]
        return Arrays(torch.cat(parts), self.labels, classes=self.classes, ids=self.ids)

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Decoded(self, draw),
            batch_sampler=[batch.tolist() for batch in batches],
            num_workers=min(self.workers, os.cpu_count() or 1),
            collate_fn=_stack,
            pin_memory=device.type == "cuda",
            # Order and draws are fixed already; torch's global generator must stay untouched.
            generator=torch.Generator(),
        )
        for positions, x in zip(batches, loader, strict=True):
            if isinstance(x, InputError):
                raise x
            yield x.to(device, non_blocking=True).float() / 255, self.labels[positions].to(device)


def _stack(items: list[Tensor | InputError]) -> Tensor | InputError:
    # Bad files are returned as values: an exception in a worker would arrive with its traceback.
    tensors = [item for item in items if isinstance(item, Tensor)]
    return (
        torch.stack(tensors)
        if len(tensors) == len(items)
        else next(item for item in items if isinstance(item, InputError))
    )


class _Decoded(Dataset[Tensor | InputError]):
    def __init__(self, folder: Folder, draw: Draw | None) -> None:
        self.folder, self.draw = folder, draw

    def __getitem__(self, position: int) -> Tensor | InputError:
        try:
            image = _open(self.folder.files[position])
        except InputError as error:
            return error
        rng = None
        if self.draw is not None:
            rng = np.random.default_rng(
                derive(self.draw.seed, self.draw.epoch, int(self.folder.ids[position]), "frame")
            )
        return torch.from_numpy(self.folder.framing.apply(image, rng).transpose(2, 0, 1).copy())


def _open(path: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError):
        raise InputError(
            f"{path} is not a readable image; remove it or restore it from the archive"
        ) from None


def scan(root: Path, framing: Framing, workers: int) -> Folder:
    """The image files below `root/CLASS/`."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "data folder", "images") from None
    if not root.is_dir():
        raise InputError(
            f"data folder: no folder {root}; set data.root to a folder with one folder per class"
        )
    names = tuple(
        sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    )
    files, labels = [], []
    for label, name in enumerate(names):
        found = sorted(
            p for p in (root / name).rglob("*") if p.is_file() and not p.name.startswith(".")
        )
        for path in found:
            if path.suffix.lower() not in SUFFIXES:
                raise InputError(
                    f"{path} is not an image (known suffixes: {' '.join(sorted(SUFFIXES))}); "
                    "remove it from the folder"
                )
        files += found
        labels += [label] * len(found)
    if not files:
        raise InputError(
            f"data folder: no image below {root}; data.root needs one folder of images per class"
        )
    return Folder(
        tuple(files), torch.tensor(labels), torch.arange(len(files)), names, framing, workers
    )


def load_folder(
    root: Path, framing: Framing, workers: int, test_share: float
) -> tuple[Folder, Folder]:
    """`root/train` and `root/val` (or `valid`, `test`) if they exist; else `root` itself, with a
    share of each class held out as test set.

    The test images do not depend on the run's seed: no run is tested on what another trained on.
    """
    train_dir = root / "train"
    test_dir = next(
        (root / name for name in ("val", "valid", "test") if (root / name).is_dir()), None
    )
    if train_dir.is_dir() and test_dir is not None:
        train, test = scan(train_dir, framing, workers), scan(test_dir, framing, workers)
        if train.names != test.names:
            odd = sorted(set(train.names) ^ set(test.names))[0]
            raise InputError(
                f"data folder: {train_dir} and {test_dir} have different classes; {odd!r} is in "
                "only one of them"
            )
        return train, _shuffled(test)
    whole = scan(root, framing, workers)
    rng = generator(0, "test")
    test_positions = []
    for label in range(whole.classes):
        members = (whole.labels == label).nonzero().squeeze(1)
        count = round(len(members) * test_share)
        test_positions.append(members[torch.randperm(len(members), generator=rng)[:count]])
    held = torch.cat(test_positions).sort().values
    mask = torch.ones(len(whole), dtype=torch.bool)
    mask[held] = False
    return whole.subset(mask.nonzero().squeeze(1)), _shuffled(whole.subset(held))


def _shuffled(test: Folder) -> Folder:
    """Files are sorted by class; a fixed random order makes the first N a fair sample."""
    return test.subset(torch.randperm(len(test), generator=generator("folder")))
