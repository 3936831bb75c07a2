"""Decoding of image files, with their size checked before a pixel is read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from amata.errors import InputError, shorten

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded, whatever a file is called. Pillow would run Ghostscript on others."""
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""EXIF orientations, and Pillow's transpositions that undo them."""
_LOCK = threading.Lock()


def decode(source: Path | IO[bytes], where: str, check_size: Callable[[int, int], None]) -> Any:
    """The image as RGB; the first one of an animation. `check_size` gets width and height."""
    with opened(source, where, check_size) as image:
        return to_rgb(image)


@contextmanager
def opened(
    source: Path | IO[bytes], where: str, check_size: Callable[[int, int], None]
) -> Iterator[Any]:
    """The image as stored, of which only the header is read. What fails here is one line."""
    try:
        with _open(source) as image:
            check_size(image.width, image.height)
            yield image
    except InputError:
        raise
    except Exception as error:  # on damaged files, decoders raise errors of many kinds
        reason = shorten(getattr(error, "strerror", None) or error)
        if isinstance(source, Path) and source.is_file() and source.stat().st_size == 0:
            reason = "it has 0 bytes"
        raise InputError(
            f"{where} is not a readable image ({reason or type(error).__name__}); remove or "
            "replace it"
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


def to_rgb(image: Any) -> Any:
    """8 bits per channel. 16 bits are divided by 256; transparent pixels show a white background,
    so that bytes that nobody sees are no data; the orientation of a camera is applied."""
    from PIL import Image

    image.load()
    # A TIFF is turned by Pillow as it is loaded, and then has no orientation any more.
    turn = _turn(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # Pillow would clip 16 bits to 255 instead of scaling them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits; convert it to 8 or 16 bits per channel")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    if image.mode != "RGB":  # else it would be a copy
        image = image.convert("RGB")
    return image if turn is None else image.transpose(turn)


def _turn(image: Any) -> int | None:
    """The transposition that the EXIF orientation asks for; damaged EXIF data ask for none."""
    try:
        return TURNS.get(image.getexif().get(0x0112))
    except Exception:  # of many kinds, as in decode
        return None
