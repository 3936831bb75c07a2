"""Resumable downloads: verified, unpacked safely, and moved into place atomically."""

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from amata.data.archive import unpack
from amata.data.download import Broken, download
from amata.errors import InputError
from amata.locks import Held, locked

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the total, or None if it is unknown."""


@dataclass(frozen=True)
class Remote:
    """A file on a server with its checksum, written "algorithm:hex"."""

    url: str
    checksum: str
    max_bytes: int
    """Bytes that it has at most."""
    unpack: bool = False
    if_larger: str = "it is not the published file; report it"
    """The way out for a file that has more."""

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.rpartition("/")[2]


def fetch(
    remote: Remote,
    folder: Path,
    progress: Progress | None = None,
    *,
    timeout: float = 30,
    tries: int = 3,
    pause: float = 2,
) -> Path:
    """Download `remote` into the folder, resuming a partial file. Returns the verified file.

    `timeout`: see `download`; `tries`: downloads before giving up, `pause` seconds apart.
    """
    target = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if (actual := checksum_of(target, remote.checksum)) != remote.checksum:
                raise InputError(
                    f"{target} exists and is not the published file ({actual}, not "
                    f"{remote.checksum}); move it away and run again"
                )
        else:
            partial = target.with_name(target.name + ".part")
            with _opened(partial) as file:
                _download(remote, file, progress, timeout, tries, pause)
                verify(partial, remote.checksum)
            os.replace(partial, target)
        if remote.unpack:
            unpack(target, folder)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be written ({error.strerror}); choose another "
            "folder with AMATA_DATA (`data fetch`: --root)"
        ) from None
    return target


@contextlib.contextmanager
def _opened(partial: Path) -> Iterator[IO[bytes]]:
    """A partial file that this process alone appends to. It is removed if it stays empty."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # A link at this name is not followed, and a FIFO not waited for.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(partial.with_name(partial.name + ".lock")))
        except Held:
            raise InputError(
                f"{partial} is being fetched by another process; wait for it"
            ) from None
        file = stack.enter_context(open(os.open(partial, flags, 0o666), "ab"))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InputError(f"{partial} is not a regular file; remove it")
        try:
            yield file
        finally:
            if os.fstat(file.fileno()).st_size == 0:
                partial.unlink(missing_ok=True)


def _download(
    remote: Remote,
    file: IO[bytes],
    progress: Progress | None,
    timeout: float,
    tries: int,
    pause: float,
) -> None:
    def report(done: int, total: int | None) -> None:
        if progress:
            progress(remote.name, done, total)

    for attempt in range(1, tries + 1):
        try:
            download(remote.url, file, remote.max_bytes, timeout, report, remote.if_larger)
            return
        except Broken as error:
            if attempt == tries:
                raise InputError(f"{error}; run the command again to resume") from None
            time.sleep(pause)


def verify(path: Path, checksum: str) -> None:
    """Remove a file whose content does not match the checksum, and raise."""
    actual = checksum_of(path, checksum)
    if actual != checksum:
        path.unlink()
        raise InputError(
            f"{path} had the wrong checksum ({actual}, not {checksum}) and was removed; run the "
            "command again"
        )


def checksum_of(path: Path, like: str) -> str:
    """The checksum of a file, by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
