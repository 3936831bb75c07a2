"""Encoded images decoded into one array in memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from amata.cores import cores
from amata.data.decode import decode
from amata.data.framing import Framing
from amata.data.limits import check_bytes, check_pixels
from amata.data.pixels import opened, pixels_of
from amata.data.processes import decode_in_processes
from amata.errors import InputError

Frame = tuple[int, int] | Framing | None
"""The width and height that every image must have, how to crop them, or None: the first one's."""


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
        frame = decode(opened(sources[0]), where(0), lambda w, h: check_pixels(w, h, where(0))).size
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
