"""One encoded image decoded into pixels of the size that it must have."""

import io
from pathlib import Path

import numpy as np

from amata.data.decode import decode
from amata.data.framing import Framing
from amata.errors import InputError


class OtherSize(InputError):
    """An image has another size than it must have."""


def pixels_of(source: bytes | Path, frame: tuple[int, int] | Framing, where: str) -> np.ndarray:
    """One image as uint8 of shape (3, H, W)."""

    def check_size(width: int, height: int) -> None:
        if isinstance(frame, Framing):
            frame.check(width, height, where)
        elif sorted((width, height)) != sorted(frame):
            raise _other_size(frame, width, height, where)

    image = decode(opened(source), where, check_size)
    if isinstance(frame, Framing):
        return frame.apply(image, None).transpose(2, 0, 1)
    if image.size != frame:  # the camera was turned
        raise _other_size(frame, image.width, image.height, where)
    return np.asarray(image).transpose(2, 0, 1)


def _other_size(frame: tuple[int, int], width: int, height: int, where: str) -> OtherSize:
    wanted = " x ".join(map(str, frame))
    return OtherSize(f"{where} has {width} x {height} pixels, not {wanted}; fetch it again")


def opened(source: bytes | Path) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source
