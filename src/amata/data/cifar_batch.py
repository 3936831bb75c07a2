"""CIFAR's python batches: pickles of one known form, parsed without unpickling anything.

The format is a dictionary with the keys `data`, one uint8 array of shape (N, 3072), and `labels`, a
list of N integers; CIFAR-100 calls them `fine_labels`. It was written by Python 2 with protocol 2;
Python 3 writes the same form with other opcodes for bytes. Names of functions are compared with
those of the format, never looked up.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

PIXELS = 3 * 32 * 32
STRINGS = {"SHORT_BINSTRING", "BINSTRING", "BINUNICODE"}
NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Name:
    """A function or class that the file names."""

    name: str


RECONSTRUCT = (
    _Name("numpy.core.multiarray _reconstruct"),
    _Name("numpy._core.multiarray _reconstruct"),
)
NDARRAY, DTYPE, ENCODE = _Name("numpy ndarray"), _Name("numpy dtype"), _Name("_codecs encode")
NAMES = {*RECONSTRUCT, NDARRAY, DTYPE, ENCODE}


@dataclass(frozen=True)
class _Dtype:
    """The dtype uint8."""


@dataclass(frozen=True)
class _Array:
    """An array as the file describes it: (version, shape, dtype, is in Fortran order, bytes)."""

    state: Any = None


def parse_batch(content: bytes, key: str = "labels") -> tuple[np.ndarray, np.ndarray]:
    """The images (N, 3, 32, 32) and the N labels of a batch file, which are in the list `key`;
    ValueError for anything else."""
    batch = _interpret(content)
    if not isinstance(batch, dict) or not {"data", key} <= batch.keys():
        raise ValueError(f"it has no data and {key}")
    labels = batch[key]
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise ValueError("its labels are not a list of integers")
    images = _read_array(batch["data"])
    if len(images) != len(labels):
        raise ValueError(f"it has {len(images)} images and {len(labels)} labels")
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _read_array(array: Any) -> np.ndarray:
    if not isinstance(array, _Array) or not isinstance(array.state, tuple) or len(array.state) != 5:
        raise ValueError("its data are not an array")
    version, shape, dtype, fortran, pixels = array.state
    if version != 1 or not isinstance(dtype, _Dtype) or not isinstance(pixels, str):
        raise ValueError("its data are not an array of bytes")
    rows = len(pixels) // PIXELS
    if shape != (rows, PIXELS) or len(pixels) != rows * PIXELS:
        raise ValueError(f"its array does not have {PIXELS} bytes per image")
    raw = np.frombuffer(pixels.encode("latin1"), np.uint8)
    return raw.reshape(rows, PIXELS, order="F" if fortran else "C")


def _interpret(content: bytes) -> Any:
    """Run the opcodes of the format on a stack of plain values. Byte strings, of Python 2 or 3,
    become text with one character per byte."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop(count: int) -> list[Any]:
        if count > len(stack) - (marks[-1] if marks else 0):
            raise ValueError("an opcode lacks its arguments")
        start = len(stack) - count
        values = stack[start:]
        del stack[start:]
        return values

    def pop_mark() -> list[Any]:
        if not marks:
            raise ValueError("an opcode lacks its mark")
        values = stack[(start := marks.pop()) :]
        del stack[start:]
        return values

    def top(kind: type[Any]) -> Any:
        if not stack or not isinstance(stack[-1], kind):
            raise ValueError(f"an opcode needs a {kind.__name__}")
        return stack[-1]

    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in NUMBERS or name in STRINGS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = top(object)
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in memo:
                raise ValueError(f"memo {argument} is empty")
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in TUPLES:
            stack.append(tuple(pop(TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(pop_mark()))
        elif name in ("APPEND", "APPENDS"):
            values = pop(1) if name == "APPEND" else pop_mark()
            top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = pop(2) if name == "SETITEM" else pop_mark()
            if len(values) % 2 or any(not isinstance(key, str) for key in values[::2]):
                raise ValueError("a key is not a string")
            top(dict).update(zip(values[::2], values[1::2], strict=True))
        elif name == "GLOBAL":
            if _Name(argument) not in NAMES:
                raise ValueError(f"it imports {argument.replace(' ', '.')}")
            stack.append(_Name(argument))
        elif name == "REDUCE":
            stack.append(_call(*pop(2)))
        elif name == "BUILD":
            stack.append(_build(*pop(2)))
        elif name == "STOP":
            return pop(1)[0]
        elif name != "PROTO" or argument != 2:
            raise ValueError(f"it has the opcode {name}")
    raise ValueError("it has no end")


def _call(function: Any, arguments: Any) -> Any:
    """The calls of the format: bytes as Python 3 writes them, an empty array, a dtype."""
    if isinstance(function, _Name) and isinstance(arguments, tuple):
        if function == ENCODE and len(arguments) == 2 and arguments[1] == "latin1":
            return arguments[0]
        if function in RECONSTRUCT and arguments == (NDARRAY, (0,), "b"):
            return _Array()
        if function == DTYPE and arguments == ("u1", False, True):
            return _Dtype()
    raise ValueError("it calls a function that is not of the format")


def _build(built: Any, state: Any) -> Any:
    """The state of a dtype, which may say nothing beyond uint8, or that of an array."""
    if (
        isinstance(built, _Dtype)
        and isinstance(state, tuple)
        and state[1:2] == ("|",)
        and all(entry in (None, -1, 0) for entry in state[2:])
    ):
        return built
    if isinstance(built, _Array):
        return _Array(state)
    raise ValueError("it sets a state that is not of the format")
