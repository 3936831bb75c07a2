"""Resumable downloads: verified, unpacked safely, and moved into place atomically."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amata.errors import InputError

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the total, or None if it is unknown."""


@dataclass(frozen=True)
class Remote:
    """A file on a server with its checksum, written "algorithm:hex"."""

    url: str
    checksum: str
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1].partition("?")[0]


def fetch(
    remote: Remote, folder: Path, progress: Progress | None = None, timeout: float = 30
) -> Path:
    """Download `remote` into the folder, resuming a partial file. Returns the verified file."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    if target.exists():
        if (actual := _checksum(target, remote.checksum)) != remote.checksum:
            raise InputError(
                f"{target} exists and is not the published file ({actual}, not "
                f"{remote.checksum}); move it away and run again"
            )
    else:
        partial = target.with_name(target.name + ".part")
        _download(remote, partial, progress, timeout)
        verify(partial, remote.checksum)
        os.replace(partial, target)
    if remote.unpack:
        unpack(target, folder)
    return target


def _download(remote: Remote, partial: Path, progress: Progress | None, timeout: float) -> None:
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(
        remote.url, headers={"Range": f"bytes={done}-"} if done else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if done and response.status != 206:  # the server ignored the range
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            with partial.open("ab" if done else "wb") as file:
                while block := response.read(1 << 18):
                    file.write(block)
                    done += len(block)
                    if progress:
                        progress(remote.name, done, total)
    except urllib.error.HTTPError as error:
        # Range not satisfiable: the partial file is complete, which the checksum verifies.
        if error.code == 416 and done:
            return
        raise InputError(
            f"{remote.url} cannot be fetched: HTTP {error.code} {error.reason}"
        ) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{remote.url} cannot be fetched ({reason}); run the command again to resume at byte "
            f"{done}"
        ) from None
    if total is not None and done < total:
        raise InputError(
            f"{remote.url} was cut off at {done} of {total} bytes; run the command again to resume"
        )


def verify(path: Path, checksum: str) -> None:
    """Remove a file whose content does not match the checksum, and raise."""
    actual = _checksum(path, checksum)
    if actual != checksum:
        path.unlink()
        raise InputError(
            f"{path} had the wrong checksum ({actual}, not {checksum}) and was removed; run the "
            "command again"
        )


def _checksum(path: Path, like: str) -> str:
    """The checksum of a file, by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file. Members and links that point outside the folder are refused; on an error
    nothing is left behind."""
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(staging, filter="data")
            else:  # Python before 3.11.4
                for member in tar:
                    inside = (staging / member.name).resolve().is_relative_to(staging.resolve())
                    if not inside or not (member.isfile() or member.isdir()):
                        raise tarfile.TarError(f"{member.name} is not a file or folder inside it")
                tar.extractall(staging)
        for entry in staging.iterdir():
            destination = folder / entry.name
            if destination.is_dir():
                shutil.rmtree(destination)
            os.replace(entry, destination)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(
            f"{archive} cannot be unpacked safely ({error}); remove it and fetch it again"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
