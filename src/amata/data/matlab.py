"""Numeric arrays of MATLAB 5 files, the format of SVHN: a header, then elements of a type, a size
and their content. Compressed elements are decompressed within the limit; objects, cells and other
kinds of arrays are skipped."""

import math
import struct
import zlib
from pathlib import Path

import numpy as np

from amata.data.limits import check_bytes, read_file
from amata.errors import InputError, shorten

COMPRESSED, MATRIX = 15, 14
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""The types of elements: their numbers in the format, and numpy's names."""
NUMERIC = range(6, 16)
"""The classes of arrays that hold real numbers: double, single, and integers of 8 to 64 bits."""
COMPLEX = 0x0800
HEADER, MOST_DIMENSIONS = 128, 8


def read_mat(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays called `names`."""
    content = memoryview(read_file(path))
    try:
        if len(content) < HEADER or bytes(content[:6]) != b"MATLAB":
            raise ValueError("it has no MATLAB 5 header")
        order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
        if order is None or struct.unpack(order + "H", content[124:126])[0] != 0x0100:
            raise ValueError("it is not of version 5")
        found: dict[str, np.ndarray] = {}
        position, inflated = HEADER, 0
        while position < len(content) and not found.keys() >= set(names):
            kind, body, position = _element(content, position, order)
            if kind == COMPRESSED:
                inner = _inflate(body, order, path)
                inflated += len(inner)
                check_bytes(inflated, path)  # all of them together
                kind, body, _ = _element(inner, 0, order)
            if kind == MATRIX and (array := _matrix(body, order)) is not None:
                found[array[0]] = array[1]
        return [found[name] for name in names]
    except InputError:
        raise
    except KeyError as error:
        reason = f"it has no array {error.args[0]}"
    except (ValueError, struct.error, zlib.error) as error:
        reason = shorten(error)
    raise InputError(
        f"{path} is truncated or not a MATLAB 5 file of arrays ({reason}); fetch it again"
    )


def _element(content: memoryview, start: int, order: str) -> tuple[int, memoryview, int]:
    """The type and the content of an element, and where the next one begins."""
    kind, size = struct.unpack_from(order + "II", content, start)
    if kind >> 16:  # small: type and size share four bytes, and the content follows at once
        kind, size, first = kind & 0xFFFF, kind >> 16, start + 4
        if size > 4:
            raise ValueError("a small element has more than 4 bytes")
        end = start + 8
    else:
        first = start + 8
        end = first + size if kind == COMPRESSED else first + -(-size // 8) * 8
    if first + size > len(content):
        raise ValueError("an element ends after the file")
    return kind, content[first : first + size], end


def _inflate(body: memoryview, order: str, path: Path) -> memoryview:
    """A compressed element, of the size that its first bytes declare."""
    size = struct.unpack(order + "II", zlib.decompressobj().decompress(body, 8))[1]
    check_bytes(size, path)
    inflater = zlib.decompressobj()
    content = inflater.decompress(body, 8 + size + 1)
    if len(content) != 8 + size or not inflater.eof:  # eof: its checksum was verified
        raise ValueError("a compressed element has another size than it declares")
    return memoryview(content)


def _matrix(body: memoryview, order: str) -> tuple[str, np.ndarray] | None:
    """The name and the values of an array; None if they are not real numbers."""
    _, flags, position = _element(body, 0, order)
    bits = struct.unpack_from(order + "I", flags)[0]
    if bits & 0xFF not in NUMERIC or bits & COMPLEX:
        return None
    _, sizes, position = _element(body, position, order)
    _, name, position = _element(body, position, order)
    kind, values, _ = _element(body, position, order)
    shape = np.frombuffer(sizes, order + "i4").tolist()
    if not 0 < len(shape) <= MOST_DIMENSIONS or min(shape) < 0 or kind not in TYPES:
        raise ValueError("an array has a shape or a type that is not of the format")
    array = np.frombuffer(values, order + TYPES[kind])
    if array.size != math.prod(shape):
        raise ValueError("an array has another size than it declares")
    return bytes(name).decode("latin1"), array.reshape(shape, order="F")
