"""Unpacking of tar files: inside their folder, within limits, beside what is there already."""

import filecmp
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from amata.errors import InputError, shorten

RATIO = 20
"""Bytes that a byte of an archive may unpack to."""
TAR_BLOCK = 512
BROKEN = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file of files and folders; links and devices are refused. Files that exist are
    kept and must be the same. On an error nothing is left behind."""
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
    except (*BROKEN, OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{archive} cannot be unpacked safely ({shorten(error)}); remove it and fetch it again"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    left = RATIO * archive.stat().st_size + (1 << 18)
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise tarfile.TarError(f"{member.name} is outside of it")
            if not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name} is a link or a device")
            left -= TAR_BLOCK + member.size
            if left < 0:
                raise tarfile.TarError(f"it unpacks to more than {RATIO} times its size")
            path = folder / name
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            if content is not None:
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file)
