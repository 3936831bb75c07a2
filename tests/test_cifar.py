"""CIFAR-10's batch files: parsed exactly, and damaged or hostile ones are refused, never run."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from amata.data.cifar import BATCHES, load_cifar10
from amata.data.cifar_batch import parse_batch
from amata.errors import InputError

LABELS = [0, 1, 9]
X = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)


def text(content: bytes) -> bytes:
    """A str of Python 2."""
    short = len(content) < 256
    return (b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + (
        content
    )


def python2(labels: list[int] = LABELS, order: bytes = b"\x89", x: np.ndarray = X) -> bytes:
    """A batch file as Python 2 wrote the published ones."""
    fields = (
        *(text(b"batch_label") + b"q\x02", text(b"training batch 1 of 5") + b"q\x03"),
        *(text(b"labels") + b"q\x04", b"]q\x05(", *(b"K" + bytes([n]) for n in labels), b"e"),
        text(b"data") + b"q\x06",
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09",
        b"U\x01bq\x0a\x87q\x0bRq\x0c(K\x01",
        *(b"M" + struct.pack("<H", n) for n in x.shape),
        b"\x86q\x0dcnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11",
        b"(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b" + order,
        text((x.T if order == b"\x88" else x).tobytes()) + b"q\x14tq\x15b",
        text(b"filenames") + b"q\x16]q\x17(",
        *(text(b"cat_%d.png" % i) + b"r\x18\x01\x00\x00" for i in range(len(labels))),
        b"eu.",
    )
    return b"\x80\x02}q\x01(" + b"".join(fields)


def python3(**changes: object) -> bytes:
    batch = {b"batch_label": b"test", b"labels": LABELS, b"data": X, b"filenames": [b"\xff.png"]}
    return pickle.dumps({**batch, **{k.encode(): v for k, v in changes.items()}}, protocol=2)


FILES = {"python 2": python2(), "Fortran order": python2(order=b"\x88"), "python 3": python3()}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_batch_is_what_unpickling_gives(content: bytes) -> None:
    x, y = parse_batch(content)
    known = pickle.loads(content, encoding="bytes")
    assert x.tobytes() == known[b"data"].tobytes() == X.tobytes()
    assert (x.shape, y.tolist()) == ((3, 3, 32, 32), known[b"labels"])


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_fine_labels_are_read_by_their_key(content: bytes) -> None:
    for kind, size in ((b"U", 1), (b"X", 4)):  # a str of Python 2, and text as Python 3 writes it
        old, new = (
            kind + len(key).to_bytes(size, "little") + key for key in (b"labels", b"fine_labels")
        )
        content = content.replace(old, new)
    x, y = parse_batch(content, "fine_labels")
    assert (x.tobytes(), y.tolist()) == (X.tobytes(), LABELS)
    with pytest.raises(ValueError, match="it has no data and labels"):
        parse_batch(content)


EVIL = b"c__builtin__\neval\n"
BAD = {
    "empty": (b"", "pickle exhausted"),
    "a call": (python2().replace(b"cnumpy\nndarray\n", EVIL), "imports __builtin__.eval"),
    "a stack global": (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "opcode PROTO"),
    "another dtype": (python2().replace(b"U\x02u1", b"U\x02O8"), "calls a function"),
    "a dtype with fields": (python2().replace(b"|q\x12NNN", b"|q\x12N}N"), "sets a state"),
    "a dtype with a size": (
        python2().replace(b"J\xff\xff\xff\xffK", b"J\x00\x00\x00\x7fK"),
        "sets",
    ),
    "a state of a name": (b"\x80\x02cnumpy\nndarray\n}b.", "sets a state"),
    "more images than bytes": (python2().replace(b"M\x03\x00", b"M\x04\x00"), "3072 bytes"),
    "one label short": (python2(labels=[1, 2]), "3 images and 2 labels"),
    "labels of text": (python3(labels=["a", "b", "c"]), "labels are not"),
    "a huge label": (python3(labels=[1, 2, 1 << 900]), "too large"),
    "data as a list": (python3(data=[1]), "not an array"),
    "data of characters": (python3(data="\u20ac" * 9216), "not an array"),
    "a list alone": (pickle.dumps([1], 2), "no data and labels"),
    "deep": (b"\x80\x02" + b"(" * 9999 + b"t" * 9999 + b".", "no data and labels"),
    "a deep shape": (
        python2().replace(b"M\x03\x00M\x00\x0c\x86", b"N" + b"\x85" * 9999),
        "3072 bytes",
    ),
    "a list in itself": (b"\x80\x02]q\x01h\x01ah\x01a.", "no data and labels"),
    "no stop": (python2()[:-1], "exhausted"),
    "no stack": (b"\x80\x02R.", "lacks its arguments"),
    "no mark": (b"\x80\x02}u.", "lacks its mark"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_other_pickles_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    for name in (*BATCHES, "test_batch"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"data_batch_1 is truncated or not .*{message}"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_one_changed_byte_gives_a_batch_or_an_error(content: bytes) -> None:
    """Half of the changes are outside of the pixels, where unpickling could crash."""
    rng, start = np.random.default_rng(0), content.index(b"numpy")
    for _ in range(300):
        near = rng.integers(max(0, start - 200), min(len(content), start + 400))
        place = int(near if rng.random() < 0.5 else rng.integers(len(content)))
        changed = bytearray(content)
        changed[place] = rng.integers(256)
        try:
            x, y = parse_batch(bytes(changed[: rng.integers(place, 20 * len(content))]))
        except (ValueError, OverflowError):
            continue
        assert (x.shape, y.shape, x.dtype.name) == ((3, 3, 32, 32), (3,), "uint8")
