"""A single image file, as a network takes it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from amata.data.decode import decode
from amata.data.framing import Framing
from amata.data.limits import check_pixels
from amata.errors import InputError, missing


class Picture(NamedTuple):
    """An image that was read from a file."""

    x: Tensor
    """Of shape (C, H, W), in [0, 1]."""
    width: int
    """Of the file, as is `height`; after the orientation of the camera is applied."""
    height: int


def read_image(
    path: str | Path, shape: tuple[int, int, int], framing: Framing | None = None
) -> Picture:
    """Read an image as the images of `shape` (C, H, W) that a network was trained on.

    With `framing` its shorter side is resized and its centre cropped, without it is resized to
    H x W. It becomes greyscale if C = 1. The size is checked before a pixel is read.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "reading images", "images") from None
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"{path}: images are read with 1 or 3 channels, not {channels}")
    if framing is not None and (height, width) != (framing.crop, framing.crop):
        raise InputError(
            f"{path}: a crop of {framing.crop} does not give {width} x {height} pixels"
        )

    def check(w: int, h: int) -> None:
        check_pixels(w, h, str(path)) if framing is None else framing.check(w, h, str(path))

    image: Any = decode(Path(path), str(path), check)
    stored = image.size
    if channels == 1:
        image = image.convert("L")
    if framing is not None:
        pixels = framing.apply(image, None)
    else:
        pixels = np.asarray(image if stored == (width, height) else image.resize((width, height)))
    x = torch.from_numpy(pixels.reshape(height, width, channels).transpose(2, 0, 1).copy())
    return Picture(x.float() / 255, *stored)
