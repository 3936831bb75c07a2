"""The check of an image folder: what is in it, and what is wrong with it."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from amata.data.decode import opened, to_rgb
from amata.data.folder import Folder, as_bad, divide
from amata.data.framing import Framing
from amata.data.layout import find_layout
from amata.data.limits import limit
from amata.data.listing import Bad, Layout, relative
from amata.data.workers import in_workers
from amata.errors import InputError

KINDS = {
    "1": "1-bit",
    "L": "greyscale",
    "I": "16-bit greyscale",
    "LA": "greyscale with transparency",
    "P": "palette",
    "RGBA": "RGB with transparency",
}
"""Pillow's modes in words; others are shown as they are."""
UNBALANCED = 3
"""How many times as many images the largest class may have as the smallest, before a hint."""


class Facts(NamedTuple):
    """What a file holds, or why it cannot be used."""

    width: int = 0
    height: int = 0
    mode: str = ""
    sha256: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Image:
    """A usable image."""

    path: Path
    part: str
    label: int
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Check:
    """Everything that is found by reading every file of a root."""

    layout: Layout
    images: tuple[Image, ...]
    bad: tuple[Bad, ...]
    problems: tuple[str, ...]
    """Why the folder cannot be trained on, bad files aside."""

    @cached_property
    def counts(self) -> dict[str, dict[str, int]]:
        """Images per class and part."""
        parts = [p for p in ("train", "valid", "test") if any(i.part == p for i in self.images)]
        found = Counter((image.label, image.part) for image in self.images)
        return {
            name: {part: found[label, part] for part in parts}
            for label, name in enumerate(self.layout.names)
        }

    def total(self, part: str) -> int:
        return sum(counts.get(part, 0) for counts in self.counts.values())

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Width and height: of the smallest and the largest image, and their medians."""
        sizes = [(i.facts.width, i.facts.height) for i in self.images] or [(0, 0)]
        middle = round(median(w for w, _ in sizes)), round(median(h for _, h in sizes))
        by_area = sorted(sizes, key=lambda size: size[0] * size[1])
        return {"min": by_area[0], "median": middle, "max": by_area[-1]}

    @cached_property
    def side(self) -> int:
        """The median of the shorter sides."""
        return round(median(min(i.facts.width, i.facts.height) for i in self.images))

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Images per kind of pixels, the most frequent first."""
        return dict(Counter(_kind(i.facts.mode) for i in self.images).most_common())

    @cached_property
    def copies(self) -> list[list[Image]]:
        """Groups of files with the same bytes."""
        groups = defaultdict(list)
        for image in self.images:
            groups[image.facts.sha256].append(image)
        return [group for group in groups.values() if len(group) > 1]

    @property
    def leaks(self) -> list[list[Image]]:
        """Copies in the training images and in another part."""
        return [
            g for g in self.copies if len(parts := {i.part for i in g}) > 1 and "train" in parts
        ]

    @property
    def conflicts(self) -> list[list[Image]]:
        """Copies in more than one class."""
        return [group for group in self.copies if len({i.label for i in group}) > 1]

    @cached_property
    def hints(self) -> list[str]:
        """What to look at, though training is possible."""
        found = []
        if self.leaks:
            first = self.leaks[0]
            twins = [next(i for i in first if (i.part == "train") is own) for own in (True, False)]
            found.append(
                f"{_count(len(self.leaks), 'training image')} also in another part, which flatters "
                f"results: {self._same(twins)}"
            )
        if self.conflicts:
            first = self.conflicts[0]
            twins = [first[0], next(i for i in first if i.label != first[0].label)]
            found.append(
                f"{_count(len(self.conflicts), 'image')} in more than one class: "
                f"{self._same(twins)}"
            )
        trained = {name: c["train"] for name, c in self.counts.items() if c.get("train")}
        if len(trained) > 1:
            low, high = min(trained, key=trained.__getitem__), max(trained, key=trained.__getitem__)
            if trained[high] >= UNBALANCED * trained[low]:
                found.append(
                    f"classes are unbalanced: {trained[high]} training images of {high!r}, "
                    f"{trained[low]} of {low!r}; set optim.class_weights=balanced, or look at "
                    "the accuracy of each class"
                )
        untested = [name for name, c in self.counts.items() if not c.get("test")]
        if 0 < len(untested) < len(self.counts):
            found.append(
                f"no test image of {', '.join(map(repr, untested[:5]))}: nothing will be known of "
                f"{'it' if len(untested) == 1 else 'them'}; add images, or raise data.test_share"
            )
        return found

    def _same(self, images: list[Image]) -> str:
        return " = ".join(relative(image.path, self.layout.root) for image in images)

    def to_dict(self) -> dict[str, Any]:
        def shown(groups: list[list[Image]]) -> list[list[str]]:
            return [[relative(i.path, self.layout.root) for i in group] for group in groups]

        return {
            "root": str(self.layout.root),
            "layout": self.layout.word,
            "about": self.layout.sentence,
            "classes": self.counts,
            "sizes": self.sizes,
            "kinds": self.kinds,
            "copies": shown(self.copies),
            "leaks": shown(self.leaks),
            "conflicts": shown(self.conflicts),
            "bad": {relative(b.path, self.layout.root): b.reason for b in self.bad},
            "problems": list(self.problems),
            "hints": self.hints,
        }


def check_folder(
    root: Path,
    *,
    test_share: float = 0.2,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Check:
    """Read every file below a root, in worker processes. `progress` gets the number of files that
    are done, and of all."""
    limit("AMATA_MAX_PIXELS")  # a wrong value is no fault of the files
    layout = find_layout(root)
    problems = list(layout.problems)
    parts: dict[str, Folder] = {
        part: Folder.of(layout, part, Framing(), 0) for part, items in layout.parts.items() if items
    }
    if not problems:
        try:
            train, valid, test = divide(layout, Framing(), 0, test_share)
            parts = {"train": train, **({"valid": valid} if valid else {}), "test": test}
        except InputError as error:
            problems.append(str(error))
    listed = [
        (path, part, label)
        for part, folder in parts.items()
        for path, label in zip(folder.files, folder.labels.tolist(), strict=True)
    ]
    facts: list[Facts] = []
    for some in _facts([path for path, _, _ in listed], workers):
        facts += some
        progress(len(facts), len(listed))
    images = [Image(*row, fact) for row, fact in zip(listed, facts, strict=True) if not fact.reason]
    bad = [Bad(row[0], fact.reason) for row, fact in zip(listed, facts, strict=True) if fact.reason]
    left = {image.label for image in images if image.part == "train"}
    lost = {label for _, part, label in listed if part == "train"} - left
    if lost:
        names = ", ".join(repr(layout.names[label]) for label in sorted(lost)[:5])
        problems.append(f"no image of {names} can be used")
    return Check(
        layout=layout,
        images=tuple(sorted(images, key=lambda image: image.path)),
        bad=tuple(sorted([*layout.bad, *bad])),
        problems=tuple(problems),
    )


def _facts(paths: list[Path], workers: int | None) -> Iterator[list[Facts]]:
    if workers is None:  # starting them takes longer than a few files
        workers = (os.cpu_count() or 1) if len(paths) > 500 else 0
    batches = torch.arange(len(paths)).split(32) if paths else ()
    return in_workers(_Files(paths), batches, workers, list)


class _Files(Dataset[Facts]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __getitem__(self, position: int) -> Facts:
        path, framing = self.paths[position], Framing()
        try:
            with opened(path, str(path), lambda w, h: framing.check(w, h, str(path))) as image:
                mode, rgb = image.mode, to_rgb(image)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except InputError as error:
            return Facts(reason=as_bad(path, error).reason)
        return Facts(rgb.width, rgb.height, mode, digest)


def _kind(mode: str) -> str:
    return KINDS["I"] if mode.startswith("I;16") else KINDS.get(mode, mode)


def _count(number: int, noun: str) -> str:
    return f"1 {noun} is" if number == 1 else f"{number:,} {noun}s are"
