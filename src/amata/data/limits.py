"""Limits on what a data file may ask for: a small file can claim billions of pixels or bytes."""

import os
from pathlib import Path

from amata.errors import InputError, shorten

DEFAULTS = {
    "AMATA_MAX_PIXELS": 100_000_000,  # of one image, as stored and as resized
    "AMATA_MAX_BYTES": 2 << 30,  # of one file of arrays, once decompressed
}


def limit(variable: str) -> int:
    """The limit of an environment variable, or its default."""
    text = os.environ.get(variable) or str(DEFAULTS[variable])
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise InputError(f"${variable} = {shorten(text, 40)!r} must be a whole number above 0")
    return int(text)


def check_pixels(width: int, height: int, where: str, what: str = "") -> None:
    """Refuse an image that is too large to decode or to resize."""
    most = limit("AMATA_MAX_PIXELS")
    if width * height > most:
        raise InputError(
            f"{where} has {width} x {height} pixels{what}, above the limit of {most} (the "
            "environment variable AMATA_MAX_PIXELS); remove it"
        )


def check_bytes(count: int, where: Path | str) -> None:
    """Refuse a file whose content is too large for memory."""
    most = limit("AMATA_MAX_BYTES")
    if count > most:
        raise InputError(
            f"{where} holds {count} bytes, above the limit of {most}; fetch it again, or set the "
            "environment variable AMATA_MAX_BYTES"
        )


def read_file(path: Path) -> bytes:
    """The content of a regular file that fits in memory. A pipe could wait for ever, and a device
    has no end."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file; remove it or restore it")
    check_bytes(path.stat().st_size, path)
    return path.read_bytes()
