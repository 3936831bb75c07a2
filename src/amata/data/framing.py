"""Framing of an image: the square that a network sees of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from amata.data.limits import check_pixels
from amata.errors import InputError


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
