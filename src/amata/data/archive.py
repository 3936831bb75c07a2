"""Unpacking of tar and zip files: inside their folder, within limits, beside what is there."""

import filecmp
import lzma
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from amata.errors import InputError, shorten

RATIO = 20
"""Bytes that a byte of an archive may unpack to."""
TAR_BLOCK = 512
BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    struct.error,
    RuntimeError,  # a compression that zipfile does not know
)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip file of files and folders; links and devices are refused. Files that
    exist are kept and must be the same. On an error nothing is left behind."""
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    try:
        _extract(archive, staging)
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        missing = []
        for path in files:
            destination = folder / path.relative_to(staging)
            if not os.path.lexists(destination):
                missing.append((path, destination))
            elif not destination.is_file() or not filecmp.cmp(path, destination, shallow=False):
                raise InputError(
                    f"{destination} exists and is not the file in {archive}; move it away and run "
                    "again"
                )
            elsewhere = next((p for p in destination.parents if p.is_symlink()), folder)
            if folder in elsewhere.parents:
                raise InputError(f"{elsewhere} is a symbolic link; move it away and run again")
        for path, destination in missing:
            destination.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, destination)
    except InputError:
        raise
    except (*BROKEN, OSError, ValueError) as error:
        raise InputError(
            f"{archive} cannot be unpacked safely ({shorten(error)}); remove it and fetch it again"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    left = RATIO * archive.stat().st_size + (1 << 18)
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    for member, size, content in members(archive):
        name = PurePosixPath(member)
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"{member} is outside of it")
        left -= TAR_BLOCK + size
        if left < 0:
            raise ValueError(f"it unpacks to more than {RATIO} times its size")
        path = folder / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            with content() as source, path.open("xb") as file:
                shutil.copyfileobj(source, file)


Member = tuple[str, int, Any]
"""The name and the size of a file, and a function that opens it; None for a folder."""


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name} is a link or a device")
            opened = None if member.isdir() else partial(tar.extractfile, member)
            yield member.name, member.size, opened


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 if it was not written on Unix
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
                raise zipfile.BadZipFile(f"{member.filename} is a link, a device or encrypted")
            opened = None if member.is_dir() else partial(file.open, member)
            yield member.filename, member.file_size, opened
