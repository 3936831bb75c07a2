"""Encoded images decoded into one array in memory."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from amata.cores import cores
from amata.data.decode import decode
from amata.data.framing import Framing
from amata.data.limits import check_bytes, check_pixels
from amata.data.processes import decode_in_processes
from amata.errors import InputError

Frame = tuple[int, int] | Framing | None
"""The width and height that every image must have, how to crop them, or None: the first one's."""


class OtherSize(InputError):
    """An image has another size than it must have."""


def decode_stack(
    sources: Sequence[bytes | Path],
    frame: Frame,
    where: Callable[[int], str],
    *,
    limited: bool = True,
) -> np.ndarray:
    """RGB images as uint8 of shape (N, 3, H, W). `where` names an image by its index. `limited`:
    refuse more than AMATA_MAX_BYTES."""
    if isinstance(frame, Framing) and frame.random_scale:
        raise InputError(
            "data.random_scale draws many crops of an image, and these images are cropped once "
            "and kept in memory; turn it off, or use an image folder"
        )
    if frame is None:
        frame = decode(
            _opened(sources[0]), where(0), lambda w, h: check_pixels(w, h, where(0))
        ).size
    width, height = (frame.crop, frame.crop) if isinstance(frame, Framing) else frame
    if limited:
        check_bytes(3 * width * height * len(sources), where(0).partition(", image 0")[0])
    out = np.empty((len(sources), 3, height, width), np.uint8)

    def fill(index: int) -> None:
        out[index] = pixels_of(sources[index], frame, where(index))

    for left in decode_in_processes(sources, frame, out):
        with ThreadPoolExecutor(cores()) as pool:
            for _ in pool.map(fill, left):
                pass
    return out


def pixels_of(source: bytes | Path, frame: tuple[int, int] | Framing, where: str) -> np.ndarray:
    """One image as uint8 of shape (3, H, W)."""

    def check_size(width: int, height: int) -> None:
        if isinstance(frame, Framing):
            frame.check(width, height, where)
        elif sorted((width, height)) != sorted(frame):
            raise _other_size(frame, width, height, where)

    image = decode(_opened(source), where, check_size)
    if isinstance(frame, Framing):
        return frame.apply(image, None).transpose(2, 0, 1)
    if image.size != frame:  # the camera was turned
        raise _other_size(frame, image.width, image.height, where)
    return np.asarray(image).transpose(2, 0, 1)


def _other_size(frame: tuple[int, int], width: int, height: int, where: str) -> OtherSize:
    wanted = " x ".join(map(str, frame))
    return OtherSize(f"{where} has {width} x {height} pixels, not {wanted}; fetch it again")


def _opened(source: bytes | Path) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source
