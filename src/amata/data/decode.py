"""Decoding of image files, with their size checked before a pixel is read."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from amata.errors import InputError, shorten

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, whatever a file is called. Pillow would run Ghostscript on others."""
_LOCK = threading.Lock()


def decode(source: Path | IO[bytes], where: str, check_size: Callable[[int, int], None]) -> Any:
    """The image as RGB; the first one of an animation. `check_size` gets width and height."""
    try:
        with _open(source) as image:
            check_size(image.width, image.height)
            return _to_rgb(image)
    except InputError:
        raise
    except Exception as error:  # on damaged files, decoders raise errors of many kinds
        reason = shorten(getattr(error, "strerror", None) or error)
        raise InputError(
            f"{where} is not a readable image ({reason or type(error).__name__}); remove it or "
            "restore it from the archive"
        ) from None


def _open(source: Path | IO[bytes]) -> Any:
    """The header of an image. Pillow's own limit is off while it is read: it warns at one size,
    fails at another, and no option raises it."""
    from PIL import Image, UnidentifiedImageError

    with _LOCK:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(source, formats=FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"not one of {', '.join(FORMATS)}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _to_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        # Pillow would clip 16 bits to 255 instead of scaling them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits; convert it to 8 bits per channel")
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # what Pillow wants, and warns of otherwise
    return image.convert("RGB")
