"""Decoded images on disk: what a process has decoded once, later ones map into memory.

An entry is a folder with images.npy, labels.npy and record.json: what was decoded and how, and the
sha256 of the arrays. It belongs to one list of source files and one way of decoding, and is
replaced when a source changes its size or its modification time. The whole checksum is verified
whenever an entry is read; it is the hash that a run records, so it costs nothing more (a tenth of a
second for CIFAR-10). So files need no fsync: what a crash, a full disk or another program leaves is
decoded again.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amata.data.class_names import check_names
from amata.data.images import content_hash
from amata.data.limits import DEFAULTS, limit
from amata.errors import shorten
from amata.locks import locked

FORMAT = 1
LEAST_BYTES = 1 << 20
"""Smaller sets are decoded in less time than it takes to notice."""
MOST_RECORD = 1 << 25
"""Bytes of a record: the names of 100,000 classes fit."""
ENTRY = re.compile(r"\.?[0-9a-f]{32}(\.[0-9a-f]{8}\.part|\.lock)?")
"""The names of entries, of their locks, and of what killed processes have left."""
_noted: set[str] = set()


class Decoded(NamedTuple):
    """The content of an entry."""

    images: np.ndarray
    """uint8 of shape (N, C, H, W)."""
    labels: np.ndarray
    """int64 of shape (N,)."""
    names: tuple[str, ...] | None = None
    """Of the classes, where the files have them."""
    sha256: str | None = None
    """That of images and labels, if it is known."""


def owned(array: np.ndarray) -> np.ndarray:
    """The array in memory of its own: a file that is deleted on another machine may be gone here
    too."""
    return array if array.flags.writeable else array.copy()


class Entry(NamedTuple):
    """An entry, for `amata data cache`."""

    path: Path
    size: int
    """In bytes."""
    about: str
    """Its first source file."""


def cache_root() -> Path | None:
    """The folder of entries: $AMATA_CACHE, $XDG_CACHE_HOME/amata/decoded or
    ~/.cache/amata/decoded. AMATA_CACHE=off: None."""
    chosen = os.environ.get("AMATA_CACHE")
    if chosen:
        return None if chosen == "off" else Path(os.path.expanduser(chosen))
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "")
    base = xdg if xdg.is_absolute() else Path(os.path.expanduser("~/.cache"))
    return base / "amata" / "decoded"


def cached(
    files: Sequence[Path], settings: dict[str, Any], decode: Callable[[], Decoded]
) -> Decoded:
    """What `decode` returns for these files and settings, from the cache if it is there. Arrays
    from the cache cannot be written to."""
    root = cache_root()
    if root is None:
        return decode()
    paths = [os.fsencode(os.path.realpath(file)) for file in files]
    key = hashlib.sha256(b"\0".join([*paths, json.dumps(settings).encode()])).hexdigest()[:32]
    place, about = root / key, _describe(paths, settings)
    if about is None:
        return decode()
    if (found := _read(place, about)) is not None:
        return found
    with _locked(root, key) as writable:
        # A process that held the lock may have decoded the same files.
        if writable and (found := _read(place, about, _damaged)) is not None:
            return found
        fresh = decode()
        large = fresh.images.nbytes >= LEAST_BYTES
        if writable and large and _describe(paths, settings) == about:
            _write(place, about, fresh)
        return fresh


def entries() -> list[Entry]:
    """The entries in the cache, the largest first; those that nothing can be said about too."""
    found = []
    for path in _ours():
        if not path.name.endswith(".lock"):
            size = sum(f.lstat().st_size for f in path.rglob("*")) if path.is_dir() else 0
            with contextlib.suppress(Exception):
                found.append(Entry(path, size, str(_record(path)["about"]["source"])))
                continue
            found.append(Entry(path, size, "unfinished or damaged"))
    return sorted(found, key=lambda entry: -entry.size)


def clear() -> list[Entry]:
    """Delete all entries. Other files in the folder stay."""
    deleted = entries()
    for path in _ours():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return deleted


def _ours() -> list[Path]:
    root = cache_root()
    if root is None or not root.is_dir():
        return []
    return [path for path in root.iterdir() if ENTRY.fullmatch(path.name)]


def _describe(paths: Sequence[bytes], settings: dict[str, Any]) -> dict[str, Any] | None:
    """Everything that pixels depend on, as JSON gives it back; None if that cannot be said."""
    digest = hashlib.sha256()
    try:
        import PIL

        for path in paths:
            known = os.stat(path)
            digest.update(b"%s\0%d %d\0" % (path, known.st_size, known.st_mtime_ns))
    except (ImportError, OSError):  # decoding says what is wrong
        return None
    about = {
        "format": FORMAT,
        "pillow": PIL.__version__,
        "source": os.fsdecode(paths[0]).encode(errors="replace").decode(),
        "sources": len(paths),
        "state": digest.hexdigest(),
        "settings": settings,
        # A file that a lower limit refuses is refused, though it was decoded before.
        "limits": [limit(name) for name in DEFAULTS],
    }
    return json.loads(json.dumps(about))


def _read(
    place: Path, about: dict[str, Any], damaged: Callable[[Path, object], None] | None = None
) -> Decoded | None:
    """The arrays of an entry; None if there is none, or not of these files, or not as written."""
    try:
        if not place.exists():
            return None
        if hasattr(os, "getuid") and place.lstat().st_uid != os.getuid():
            raise ValueError("it belongs to another user")
        record = _record(place)
        names = None if record["names"] is None else check_names(record["names"])
        if record["about"] != about:
            return None
        images = _array(place / "images.npy", np.uint8, 4)
        labels = _array(place / "labels.npy", np.int64, 1)
        sha256 = content_hash(images, labels)
        if len(images) != len(labels) or sha256 != record["sha256"]:
            raise ValueError("its checksum is wrong")
        return Decoded(images, labels, names, sha256)
    except Exception as error:  # of many kinds: a header of numpy is a Python literal
        if damaged is not None:
            damaged(place, error)
        return None


def _record(place: Path) -> dict[str, Any]:
    path = place / "record.json"
    _check_regular(path)
    with path.open("rb") as file:
        record: dict[str, Any] = json.loads(file.read(MOST_RECORD))
    if record.pop("checksum") != _checksum(record):
        raise ValueError("the checksum of its record is wrong")
    return record


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _array(path: Path, dtype: type, dimensions: int) -> np.ndarray:
    _check_regular(path)
    array = np.lib.format.open_memmap(path, mode="r")  # refuses pickles
    if array.dtype != dtype or array.ndim != dimensions or len(array) == 0:
        raise ValueError(f"{path.name} has {array.dtype} of shape {array.shape}")
    return array


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would wait for ever
        raise ValueError(f"{path.name} is not a regular file")


def _write(place: Path, about: dict[str, Any], fresh: Decoded) -> None:
    """Write an entry beside its place, then move it there. A disk that is full is no error."""
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        if shutil.disk_usage(place.parent).free < 2 * fresh.images.nbytes:
            raise OSError("the disk is nearly full")
        partial.mkdir(mode=0o700)
        sha256 = content_hash(fresh.images, fresh.labels)
        record = {"about": about, "names": fresh.names, "sha256": sha256}
        _save(partial / "images.npy", np.ascontiguousarray(fresh.images))
        _save(partial / "labels.npy", fresh.labels)
        (partial / "record.json").write_text(json.dumps({**record, "checksum": _checksum(record)}))
        if place.exists():
            old = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
            place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        partial.rename(place)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        _unwritable(place.parent, error)


def _save(path: Path, array: np.ndarray) -> None:
    """As np.save, whose errors do not say that the disk is full."""
    with path.open("xb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)


@contextlib.contextmanager
def _locked(root: Path, key: str) -> Iterator[bool]:
    """Let one process decode while others wait: whether the cache can be written. The lock dies
    with its process."""
    with contextlib.ExitStack() as stack:
        writable = True
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(locked(root / f".{key}.lock", wait=True))
            for left in root.glob(f".{key}.*.part"):  # of killed processes
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            writable = False
            _unwritable(root, error)
        yield writable


def _damaged(place: Path, error: object) -> None:
    _note(f"cached images in {place} are not used ({shorten(error)}); they are decoded again")


def _unwritable(root: Path, error: OSError) -> None:
    _note(
        f"decoded images cannot be cached in {root} ({error.strerror or error}); set AMATA_CACHE "
        "to another folder, or to off"
    )


def _note(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        logging.getLogger("amata").warning(text)
