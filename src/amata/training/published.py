"""Weights that somebody published: a file at a URL, accepted by its checksum alone.

Whoever controls a server, or the line to it, chooses what it sends, a checksum beside the file
included. So the checksum comes from the user, who has it from a place that they trust, such as the
card of the model. The file is downloaded as data sets are, and kept in their folder.
"""

import contextlib
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from amata.data import data_root
from amata.data.fetch import Remote, checksum_of, fetch
from amata.data.limits import limit
from amata.errors import InputError, shorten

SUFFIXES = (".safetensors", ".pt", ".pth")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|https?:/")
"""The start of a URL; a Path has lost one of its slashes."""


def local_path(path: str | Path, sha256: str | None = None) -> Path:
    """A folder or file, or the downloaded file of a URL. A file has to have the SHA-256 checksum
    `sha256` if it is given; for a URL it must be."""
    checksum = None if sha256 is None else _checksum(sha256)
    if URL.match(str(path)):
        return _download(str(path), checksum)
    place = Path(os.path.expanduser(path))
    if checksum is not None:
        if not place.is_file():
            raise InputError(
                f"sha256 is the checksum of one file, and {place} is not a file; pass the "
                "weights file, or drop it"
            )
        if (actual := checksum_of(place, checksum)) != checksum:
            raise InputError(
                f"{place} is not the published file ({actual}, not {checksum}); download it again"
            )
    return place


def _checksum(sha256: str) -> str:
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError(
            f"sha256 = {shorten(sha256, 80)!r} must be 64 hexadecimal digits, as `sha256sum FILE` "
            "prints them"
        )
    return f"sha256:{sha256.lower()}"


def _download(url: str, checksum: str | None) -> Path:
    from amata.console import downloading  # imports rich, which `import amata` does not need

    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    shown = shorten(url, 200)
    if not re.fullmatch("[!-~]+", url) or not host:
        raise InputError(
            f"{shown!r} is not a URL; pass it as text, as in https://example.org/model.safetensors"
        )
    if parts.scheme not in ("https", "http"):
        raise InputError(f"{shown}: weights are fetched over https or http only; download the file")
    if not re.fullmatch(r"[\w.+%-]+", parts.path.rpartition("/")[2]) or not parts.path.endswith(
        SUFFIXES
    ):
        raise InputError(f"{shown} is not the URL of a weights file ({', '.join(SUFFIXES)})")
    if checksum is None:
        raise InputError(
            f"{shown} may send any file: pass the SHA-256 checksum of the weights (sha256=..., "
            "--sha256 ...), which the model's card has"
        )
    remote = Remote(
        url,
        checksum,
        max_bytes=limit("AMATA_MAX_BYTES"),
        if_larger="set the environment variable AMATA_MAX_BYTES",
    )
    folder = data_root() / "weights" / checksum.partition(":")[2]
    try:
        with downloading() as progress:
            return fetch(remote, folder, progress)
    except InputError:
        with contextlib.suppress(OSError):  # it holds a part of the file, to be resumed
            folder.rmdir()
        raise
