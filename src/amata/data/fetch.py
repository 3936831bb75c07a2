"""Downloads that can be interrupted: resumed where they stopped, verified, unpacked safely, and
moved into place whole."""

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
"""Called with the file's name, the bytes so far and the bytes in all (where the server tells)."""


@dataclass(frozen=True)
class Remote:
    """A file on a server with its checksum, written "algorithm:hex"."""

    url: str
    checksum: str
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1].partition("?")[0]


SOURCES: dict[str, tuple[Remote, ...]] = {
    "mnist": tuple(
        Remote(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", f"md5:{md5}")
        for name, md5 in {
            "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
        }.items()
    ),
    "cifar10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            unpack=True,
        ),
    ),
    "caltech256": (
        Remote(
            "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
            "sha1:2195e9a478cf78bd23a1fe51f4dabe1c33744a1c",
            unpack=True,
        ),
    ),
}


def fetch(
    remote: Remote, folder: Path, progress: Progress | None = None, timeout: float = 30
) -> Path:
    """Bring `remote` into the folder, going on with a partial file if there is one. Returns the
    verified file."""
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
            if done and response.status != 206:  # the server sends the whole file again
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
        # nothing is left to send: the partial file is whole, or the checksum will tell
        if error.code == 416 and done:
            return
        raise InputError(
            f"{remote.url} cannot be fetched: HTTP {error.code} {error.reason}"
        ) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{remote.url} cannot be fetched ({reason}); {done} bytes are kept, run the "
            "command again to go on"
        ) from None
    if total is not None and done < total:
        raise InputError(
            f"{remote.url} broke off at {done} of {total} bytes, which are kept; run the "
            "command again to go on"
        )


def verify(path: Path, checksum: str) -> None:
    """Refuse, and remove, a file whose content is not what its checksum says."""
    actual = _checksum(path, checksum)
    if actual != checksum:
        path.unlink()
        raise InputError(
            f"{path} has a wrong checksum ({actual}, not {checksum}) and was removed; run the "
            "command again"
        )


def _checksum(path: Path, like: str) -> str:
    """The checksum of a file, by the algorithm of another."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file; members that would leave the folder, and links out of it, are refused.
    Nothing half-done stays."""
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(staging, filter="data")
            else:  # Python before 3.11.4
                for member in tar:
                    inside = (staging / member.name).resolve().is_relative_to(staging.resolve())
                    if not inside or not (member.isfile() or member.isdir()):
                        raise tarfile.TarError(f"{member.name} is no file or folder inside")
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
