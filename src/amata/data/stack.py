"""Encoded images decoded into one array in memory."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from amata.data.decode import decode
from amata.data.framing import Framing
from amata.data.limits import check_bytes, check_pixels
from amata.errors import InputError

Frame = tuple[int, int] | Framing | None
"""The width and height that every image must have, how to crop them, or None: the first one's."""


class OtherSize(InputError):
    """An image has another size than it must have."""


def decode_stack(
    sources: Sequence[bytes | Path], frame: Frame, where: Callable[[int], str]
) -> np.ndarray:
    """RGB images as uint8 of shape (N, 3, H, W). `where` names an image by its index."""

    def other_size(index: int, width: int, height: int) -> OtherSize:
        wanted = " x ".join(map(str, size))
        return OtherSize(
            f"{where(index)} has {width} x {height} pixels, not {wanted}; fetch it again"
        )

    def fill(index: int) -> None:
        def check_size(width: int, height: int) -> None:
            if isinstance(frame, Framing):
                frame.check(width, height, where(index))
            elif sorted((width, height)) != sorted(size):
                raise other_size(index, width, height)

        image = decode(_opened(sources[index]), where(index), check_size)
        if not isinstance(frame, Framing) and image.size != size:  # the camera was turned
            raise other_size(index, *image.size)
        pixels = frame.apply(image, None) if isinstance(frame, Framing) else np.asarray(image)
        out[index] = pixels.transpose(2, 0, 1)

    if isinstance(frame, Framing):
        if frame.random_scale:
            raise InputError(
                "data.random_scale draws many crops of an image, and these images are cropped once "
                "and kept in memory; turn it off, or use an image folder"
            )
        size = frame.crop, frame.crop
    elif frame is None:
        size = decode(_opened(sources[0]), where(0), lambda w, h: check_pixels(w, h, where(0))).size
    else:
        size = frame
    width, height = size
    check_bytes(3 * width * height * len(sources), where(0).partition(", image 0")[0])
    out = np.empty((len(sources), 3, height, width), np.uint8)
    with ThreadPoolExecutor() as pool:  # decoding releases the GIL
        for _ in pool.map(fill, range(len(sources))):
            pass
    return out


def _opened(source: bytes | Path) -> Path | io.BytesIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source
