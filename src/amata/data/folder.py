"""Image folders, one folder per class (Caltech-256, ImageNet), decoded in worker processes."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amata.data.decode import decode
from amata.data.images import Arrays, Draw
from amata.data.limits import check_pixels
from amata.data.map_style import ignore_interrupts
from amata.errors import AmataError, InputError, missing
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
        width, height = self._resized(image.width, image.height)
        image = image.resize((width, height))
        spare_x, spare_y = width - self.crop, height - self.crop
        left, top = (
            (spare_x // 2, spare_y // 2)
            if rng is None
            else (rng.integers(spare_x + 1), rng.integers(spare_y + 1))
        )
        return np.asarray(image.crop((left, top, left + self.crop, top + self.crop)))

    def check(self, width: int, height: int, where: str) -> None:
        """Refuse an image that is too large, or would be once its shorter side is resized."""
        check_pixels(width, height, where)
        check_pixels(*self._resized(width, height), where, f" once resized from {width} x {height}")

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        scale = self.resize / min(width, height)
        return max(self.resize, round(width * scale)), max(self.resize, round(height * scale))

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
    random_crops: ClassVar[bool] = True
    """Every training read crops another window, so methods cannot store anything per pixel."""

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.framing.crop, self.framing.crop

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
        return Arrays(torch.cat(parts), self.labels, names=self.names, ids=self.ids)

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        decoded = self._decode(batches, draw, _stack, pin_memory=device.type == "cuda")
        for positions, x in zip(batches, decoded, strict=True):
            if isinstance(x, InputError):
                raise x
            yield x.to(device, non_blocking=True).float() / 255, self.labels[positions].to(device)

    def check(self) -> None:
        """Decode every image. One error gives the number of bad ones and names the first."""
        batches = torch.arange(len(self)).split(64)
        bad = [error for errors in self._decode(batches, None, _errors) for error in errors]
        if len(bad) == 1:
            raise bad[0][1]
        if bad:
            names = ", ".join(str(self.files[position]) for position, _ in bad[:3])
            raise InputError(f"{len(bad)} images cannot be used, such as {names}: {bad[0][1]}")

    def _decode(
        self,
        batches: Sequence[Tensor],
        draw: Draw | None,
        collate: Callable[[list[Any]], Any],
        pin_memory: bool = False,
    ) -> Iterator[Any]:
        loader = DataLoader(
            _Decoded(self, draw),
            batch_sampler=[batch.tolist() for batch in batches],
            num_workers=min(self.workers, os.cpu_count() or 1),
            collate_fn=collate,
            pin_memory=pin_memory,
            worker_init_fn=ignore_interrupts,
            # Order and draws are fixed already; torch's global generator must stay untouched.
            generator=torch.Generator(),
        )
        try:
            yield from loader
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise AmataError(
                "a worker process that decodes images died, perhaps for lack of memory; lower "
                "data.workers"
            ) from None


def _stack(items: list[tuple[int, Tensor | InputError]]) -> Tensor | InputError:
    # Bad files are returned as values: an exception in a worker would arrive with its traceback.
    tensors = [item for _, item in items if isinstance(item, Tensor)]
    return torch.stack(tensors) if len(tensors) == len(items) else _errors(items)[0][1]


def _errors(items: list[tuple[int, Tensor | InputError]]) -> list[tuple[int, InputError]]:
    return [(position, item) for position, item in items if isinstance(item, InputError)]


class _Decoded(Dataset[tuple[int, Tensor | InputError]]):
    def __init__(self, folder: Folder, draw: Draw | None) -> None:
        self.folder, self.draw = folder, draw

    def __getitem__(self, position: int) -> tuple[int, Tensor | InputError]:
        path, framing = self.folder.files[position], self.folder.framing
        try:
            image = decode(path, str(path), lambda w, h: framing.check(w, h, str(path)))
        except InputError as error:
            return position, error
        rng = None
        if self.draw is not None:
            rng = np.random.default_rng(
                derive(self.draw.seed, self.draw.epoch, int(self.folder.ids[position]), "frame")
            )
        return position, torch.from_numpy(framing.apply(image, rng).transpose(2, 0, 1).copy())


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
    entries = [p for p in root.iterdir() if not p.name.startswith(".")]
    names = tuple(sorted(p.name for p in entries if p.is_dir()))
    odd = [p for p in entries if not p.exists()]  # links to nowhere
    files, labels = [], []
    for label, name in enumerate(names):
        found, others = _files_below(root / name)
        odd += others
        files += found
        labels += [label] * len(found)
    _refuse(odd, "is a broken link, a link to a folder or not a regular file")
    _refuse(
        [path for path in files if path.suffix.lower() not in SUFFIXES],
        f"is not an image (known suffixes: {' '.join(sorted(SUFFIXES))})",
    )
    if not files:
        raise InputError(
            f"data folder: no image below {root}; data.root needs one folder of images per class"
        )
    return Folder(
        tuple(files), torch.tensor(labels), torch.arange(len(files)), names, framing, workers
    )


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files in a folder and its folders, sorted, and what is neither a file nor a folder."""
    files: list[Path] = []
    odd: list[Path] = []
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry))
                elif not entry.name.startswith("."):
                    path = Path(entry)
                    regular = entry.is_file(follow_symlinks=False) or path.is_file()
                    (files if regular else odd).append(path)
    return sorted(files), odd


def _refuse(paths: list[Path], reason: str) -> None:
    if paths:
        others = f", and so are {len(paths) - 1} others" if len(paths) > 1 else ""
        raise InputError(f"{min(paths)} {reason}{others}; remove it from the folder")


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
    if not 0 < len(held) < len(whole):
        raise InputError(
            f"data.test_share = {test_share:g} holds out {len(held)} of the {len(whole)} images of "
            f"{root}; change it, or split the folder into train and val"
        )
    mask = torch.ones(len(whole), dtype=torch.bool)
    mask[held] = False
    return whole.subset(mask.nonzero().squeeze(1)), _shuffled(whole.subset(held))


def _shuffled(test: Folder) -> Folder:
    """Files are sorted by class; a fixed random order makes the first N a fair sample."""
    return test.subset(torch.randperm(len(test), generator=generator("folder")))
