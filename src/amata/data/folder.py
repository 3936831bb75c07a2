"""Image folders (Caltech-256, ImageNet, your own), decoded in worker processes."""

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from amata.data.cache import Decoded, cached, owned
from amata.data.decode import decode, opened
from amata.data.framing import Framing
from amata.data.hold_out import held_out
from amata.data.images import Arrays, Draw, ImageSet
from amata.data.layout import find_layout
from amata.data.limits import limit
from amata.data.listing import PARTS, Bad, Layout, bad_files, relative
from amata.data.stack import decode_stack
from amata.data.workers import in_workers
from amata.errors import InputError, missing
from amata.seeds import derive, generator

SAMPLED, MOST_READ = 256, 1 << 24  # files of a folder, and bytes of a file, that its hash reads
MOST_OPENED = 10_000
"""Images of a folder whose headers are all read before training; in a larger folder a bad image is
found when it is read."""


@dataclass(frozen=True)
class Folder(ImageSet):
    """Labelled image files, read lazily."""

    files: tuple[Path, ...]
    labels: Tensor
    ids: Tensor
    names: tuple[str, ...]
    framing: Framing
    workers: int
    root: Path
    random_crops: ClassVar[bool] = True
    """Every training read crops another window, so methods cannot store anything per pixel."""

    @classmethod
    def of(cls, layout: Layout, part: str, framing: Framing, workers: int) -> "Folder":
        files, labels = zip(*layout.parts[part], strict=True)
        ids = torch.arange(len(files))
        root, names = layout.root, layout.names
        return cls(files, torch.tensor(labels), ids, names, framing, workers, root)

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

        def decode() -> Decoded:
            try:
                x = decode_stack(
                    self.files, self.framing, lambda i: str(self.files[i]), limited=False
                )
            except InputError:
                self.check_few()
                raise
            return Decoded(x, self.labels.numpy())

        x = cached(self.files, {"framing": asdict(self.framing)}, decode).images
        return Arrays(owned(x), self.labels, names=self.names, ids=self.ids)

    def read(
        self, batches: Sequence[Tensor], device: torch.device, draw: Draw | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        decoded = in_workers(
            _Batches(self, draw), batches, self.workers, _same, pin_memory=device.type == "cuda"
        )
        for positions, x in zip(batches, decoded, strict=True):
            if isinstance(x, InputError):
                self.check_few()
                raise x
            yield x.to(device, non_blocking=True).float() / 255, self.labels[positions].to(device)

    def check_few(self) -> None:
        """Name all bad files of a folder that is not large, not only the first that was met."""
        if len(self) <= MOST_OPENED:
            self.check()

    def check(self) -> None:
        """Decode every image. One error names all bad ones."""
        if bad := self.bad():
            raise bad_files([bad[position] for position in sorted(bad)], self.root)

    def bad(self) -> dict[int, Bad]:
        """Decode every image: the positions of those that cannot be."""
        batches = torch.arange(len(self)).split(64)
        found = in_workers(_Decoded(self, None), batches, self.workers, _errors)
        return {
            position: as_bad(self.files[position], error)
            for errors in found
            for position, error in errors
        }

    def bad_headers(self) -> list[Bad]:
        """The images whose header shows that they cannot be decoded."""
        found = []
        for path in self.files:
            try:
                with opened(path, str(path), lambda w, h: self.framing.check(w, h, str(path))):  # noqa: B023
                    pass
            except InputError as error:
                found.append(as_bad(path, error))
        return found


def as_bad(path: Path, error: InputError) -> Bad:
    """The error of a file without its name, and without its hint."""
    reason, _, _ = str(error).removeprefix(f"{path} ").rpartition("; ")
    return Bad(path, reason)


def _errors(items: list[tuple[int, np.ndarray | InputError]]) -> list[tuple[int, InputError]]:
    # Bad files are returned as values: an exception in a worker would arrive with its traceback.
    return [(position, item) for position, item in items if isinstance(item, InputError)]


class _Decoded(Dataset[tuple[int, np.ndarray | InputError]]):
    """The pixels of each image, of shape (H, W, 3)."""

    def __init__(self, folder: Folder, draw: Draw | None) -> None:
        self.folder, self.draw = folder, draw

    def __getitem__(self, position: int) -> tuple[int, np.ndarray | InputError]:
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
        return position, framing.apply(image, rng)


class _Batches(_Decoded):
    """Whole batches, of shape (N, 3, H, W): every image is written to its place once."""

    def __getitems__(self, positions: list[int]) -> Tensor | InputError:
        batch = np.empty((len(positions), *self.folder.shape), np.uint8)
        for index, position in enumerate(positions):
            _, pixels = self[position]
            if isinstance(pixels, InputError):
                return pixels
            batch[index] = pixels.transpose(2, 0, 1)
        return torch.from_numpy(batch)


def _same(batch: Any) -> Any:
    return batch


class Loaded(NamedTuple):
    train: Folder
    valid: Folder | None
    """The folder's own validation part."""
    test: Folder
    skipped: int
    """Files that could not be used."""


def load_folder(
    root: Path,
    framing: Framing,
    workers: int,
    test_share: float,
    *,
    skip_bad: bool = False,
) -> Loaded:
    """The images of a root in one of the layouts of `amata.data.layout`.

    The test images do not depend on the run's seed: no run is tested on what another trained on.
    With `skip_bad` every image is decoded first, and files that cannot be used are left out. The
    others keep their ids, and their place in the training or the test set.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "data folder", "images") from None
    limit("AMATA_MAX_PIXELS")  # a wrong value is no fault of the files
    layout = find_layout(root)
    if layout.problems:
        raise InputError(f"data folder: {'; '.join(layout.problems)}")
    train, valid, test = divide(layout, framing, workers, test_share)
    parts = [part for part in (train, valid, test) if part is not None]
    if not skip_bad:
        bad = list(layout.bad)
        if layout.count <= MOST_OPENED:
            bad += [each for part in parts for each in part.bad_headers()]
        if bad:
            raise bad_files(sorted(bad), root)
        return Loaded(train, valid, test, 0)
    dropped = [part.bad() for part in parts]
    kept = iter([_without(part, set(bad)) for part, bad in zip(parts, dropped, strict=True)])
    skipped = len(layout.bad) + sum(map(len, dropped))
    return Loaded(next(kept), next(kept) if valid else None, next(kept), skipped)


def divide(
    layout: Layout, framing: Framing, workers: int, test_share: float
) -> tuple[Folder, Folder | None, Folder]:
    """The training, validation and test images of a layout."""
    parts = {part: Folder.of(layout, part, framing, workers) for part in layout.parts}
    whole = parts["train"]
    if "test" in parts:
        valid = parts.get("valid")
        if valid is not None:  # its ids follow those of the training images
            valid = replace(valid, ids=valid.ids + len(whole))
        return whole, valid, _shuffled(parts["test"])
    hint = "split the folder into train and val"
    names = [_stable_name(file, layout.root) for file in whole.files]
    held = held_out(whole.labels, whole.classes, test_share, str(layout.root), hint, names)
    return _without(whole, set(held.tolist())), None, _shuffled(whole.subset(held))


def _stable_name(file: Path, root: Path) -> bytes:
    """What a file is called wherever its folder lies, whether that has a folder train or is one,
    and however the file system spells accents."""
    parts = Path(relative(file, root)).parts
    if parts[0].lower() in PARTS:
        parts = parts[1:]
    return os.fsencode(unicodedata.normalize("NFC", "/".join(parts)))


def _without(images: Folder, dropped: set[int]) -> Folder:
    """The images but those at some positions. Every class must keep one."""
    left = images.subset(torch.tensor([i for i in range(len(images)) if i not in dropped]).long())
    lost = set(images.labels.tolist()) - set(left.labels.tolist())
    if lost:
        names = ", ".join(repr(images.names[label]) for label in sorted(lost)[:5])
        raise InputError(f"data folder: no image of {names} is left in {images.root}; add some")
    return left


def _shuffled(test: Folder) -> Folder:
    """Files are sorted by class; a fixed random order makes the first N a fair sample."""
    return test.subset(torch.randperm(len(test), generator=generator("folder")))
