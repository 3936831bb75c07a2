"""Atomic files with checksums: a reader sees the old content or the new one, never a part, and a
flipped bit is noticed.

JSON records and safetensors files carry the checksum of their own content, so that a file that is
copied elsewhere can still be checked. Files without one, of other programs, are read as they are.
"""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from amata import checksums
from amata.checksums import ABOUT, CHECKSUM, RESTORE, damaged
from amata.errors import InputError, shorten
from amata.tensors import read_metadata

LIMIT = 100_000_000
"""The largest text file that is read, in bytes."""
NAMES = {
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of types in safetensors files."""


def write_atomic(path: Path, *content: bytes | memoryview) -> None:
    """Write a temporary file, sync it, then rename it over the target. If anything fails, the old
    file stays. A symbolic link is replaced, not followed."""
    partial = _partial(path)
    try:
        path.parent.mkdir(exist_ok=True)
        with partial.open("xb") as file:  # never an existing file or link
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise unwritable(path, error) from None
    # Some file systems cannot sync a folder; the rename is atomic anyway.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def link_atomic(path: Path, source: Path) -> None:
    """Make `path` a hard link to `source`, or a copy where links are not supported."""
    partial = _partial(path)
    try:
        os.link(source, partial)
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        write_atomic(path, source.read_bytes())


def append_line(path: Path, text: str) -> None:
    """Append a line and sync it. A symbolic link is refused."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(path, flags, 0o666), "ab") as file:
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from None


def _partial(path: Path) -> Path:
    """A new name for a temporary file beside `path`: one that can be foreseen could be a link."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def refuse_links(*paths: Path) -> None:
    """Refuse symbolic links where something is written below or appended: it would go elsewhere."""
    for path in paths:
        if path.is_symlink():
            raise InputError(
                f"{path} is a symbolic link, and nothing is written outside the folder that is "
                "given; replace it by what it points to"
            )


def make_output(path: Path, *files: str) -> list[Path]:
    """Create an output folder. It must be writable, no run folder, and without these files. Returns
    the folders that were created, the outermost first."""
    created: list[Path] = []
    try:
        if (path / "recipe.toml").is_file():
            raise InputError(f"{path} is a run folder; choose another folder")
        created += (folder for folder in reversed((path, *path.parents)) if not folder.is_dir())
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
        there = next((path / name for name in files if os.path.lexists(path / name)), None)
    except OSError as error:
        remove_empty(created)
        raise InputError(
            f"cannot write to output folder {path} ({error.strerror}); choose another folder"
        ) from None
    if there is not None:
        raise InputError(f"{there} exists already; choose another folder")
    return created


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove those that are empty, the last one first."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # not empty, or not there
            folder.rmdir()


def remove_partial(folder: Path, name: str = "*") -> None:
    """Remove what killed processes have left of files with such names."""
    for path in folder.glob(f".{name}.{'[0-9a-f]' * 8}.part"):
        remove(path)


def remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> InputError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return InputError(
        f"cannot write {path} ({error.strerror}); what was saved before is still there: "
        f"{'free some space' if full else 'make the folder writable'} and resume"
    )


def read_text(path: Path, hint: str = RESTORE) -> str:
    """The text of a regular file of at most LIMIT bytes."""
    try:
        if path.exists() and not path.is_file():
            raise damaged(path, "it is not a regular file", hint)
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); {hint}") from None
    if len(content) > LIMIT:
        raise InputError(f"{path} has more than {LIMIT // 10**6} MB; {hint}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise damaged(path, "it is not UTF-8 text", hint) from None


def read_json(path: Path, hint: str = RESTORE) -> Any:
    """The content of a JSON file."""
    try:
        return parse_json(read_text(path, hint))
    except InputError:
        raise
    except ValueError as error:
        raise damaged(path, error, hint) from None


def parse_json(text: str) -> Any:
    """The value of a JSON text; a ValueError whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    write_atomic(path, (json.dumps(value, indent=indent) + "\n").encode())


def write_record(path: Path, record: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON object with the checksum of its content."""
    found = checksums.of_record(json.loads(json.dumps(record)))
    write_json(path, {**record, "sha256": found}, indent=indent)


def read_record(
    path: Path, kind: TypeAdapter[Any] | None = None, *, sealed: bool = False, hint: str = RESTORE
) -> dict[str, Any]:
    """A JSON object, of the given type, checked against its checksum. One without a checksum, of an
    earlier version or of another program, is accepted unless it must be `sealed`."""
    record = read_json(path, hint)
    if not isinstance(record, dict):
        raise damaged(path, "it is not a JSON object", hint)
    found = record.pop("sha256", None)
    if found is None:
        # Its key may be what is damaged.
        texts = (value for value in record.values() if isinstance(value, str))
        if sealed or any(re.fullmatch("[0-9a-f]{64}", text) for text in texts):
            raise damaged(path, "it has no checksum", hint)
    elif found != checksums.of_record(record):
        raise damaged(path, "its checksum is wrong", hint)
    if kind is not None:
        check_type(kind, record, path, hint)
    return record


def check_type(kind: TypeAdapter[Any], value: Any, path: Path, hint: str = RESTORE) -> None:
    """Refuse a value of a file that is not of the given type."""
    try:
        kind.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise damaged(path, f"{place}: {first['msg']}".lstrip(": "), hint) from None


def save_tensors(
    path: Path, tensors: dict[str, Tensor], about: dict[str, Any] | None = None
) -> str:
    """Write a safetensors file with a JSON description and a checksum in its header; returns the
    checksum.

    The library's own writer copies everything twice and holds the interpreter lock, which would
    stop training.
    """
    flat, text_about = _flat(tensors), json.dumps(about or {})
    checksum = checksums.of_tensors(flat, text_about)
    header: dict[str, Any] = {
        "__metadata__": {ABOUT: text_about, CHECKSUM: checksum, "format": "pt"}
    }
    pieces: list[memoryview] = []
    end = 0
    # Sorted by element size, so that every tensor is aligned.
    for name in sorted(flat, key=lambda name: (-flat[name].element_size(), name)):
        tensor = flat[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        pieces.append(checksums.raw(tensor))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight
    # In pieces, so that large tensors are not copied while training runs.
    write_atomic(path, len(text).to_bytes(8, "little"), text, *pieces)
    return checksum


def tensors_checksum(tensors: dict[str, Tensor]) -> str:
    """The checksum that `save_tensors` would return without a description."""
    return checksums.of_tensors(_flat(tensors), json.dumps({}))


def _flat(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def describe_weights(path: Path) -> dict[str, Any]:
    """The JSON description in a safetensors file's header; empty for a file that is not ours."""
    metadata = read_metadata(path)
    try:
        about = parse_json(metadata.get(ABOUT, "{}"))
    except ValueError as error:
        raise damaged(path, shorten(error)) from None
    if not isinstance(about, dict):
        raise damaged(path, "its description is not a JSON object")
    return about


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
