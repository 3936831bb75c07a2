"""Decoded images on disk: the same images, whatever happened to the files."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from amata.data import Arrays, Framing, Splits, cache, load, parquet, processes, stack
from amata.data.pixels import pixels_of
from amata.data.workers import in_workers
from amata.errors import InputError
from tests.disk import full_disk
from tests.published import (
    encode,
    pictures,
    write_parquet,
    write_svhn,
    write_tinyimagenet,
)

X = pictures(30)
CONTENTS = [encode(pixels, "JPEG") for pixels in X]
NAMES = [f"class {i}" for i in range(30)]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, for sets of any size."""
    monkeypatch.setenv("AMATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(cache, "_noted", set())
    yield tmp_path / "cache"
    parquet._decoded.cache_clear()


def write_folder(folder: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / part / name).mkdir(parents=True)
            for i in range(2):
                Image.fromarray(pictures(1)[0]).save(folder / part / name / f"{i}.png")


def write_parts(folder: Path) -> None:
    for part in ("train", "test"):
        write_parquet(
            folder / f"{part}-0.parquet", CONTENTS, range(30), names=list(map(str, range(30)))
        )


def read(name: str, root: Path) -> Splits:
    """As a new process reads it."""
    parquet._decoded.cache_clear()
    return load(
        name, root=root, framing=Framing(28, 24) if name == "folder" else None, in_memory=True
    )


def same(a: Splits, b: Splits) -> bool:
    pairs = [(a.train, b.train), (a.test, b.test)]
    return a.hashes == b.hashes and all(
        isinstance(x, Arrays)
        and isinstance(y, Arrays)
        and torch.equal(x.x, y.x)
        and torch.equal(x.y, y.y)
        and x.names == y.names
        and y.sha256() == Arrays(y.x, y.y).sha256()
        for x, y in pairs
    )


def spoil(folder: Path) -> None:
    """Make all images unreadable, with the sizes and times of their files as before."""
    for file in (f for f in folder.rglob("*") if f.suffix in (".parquet", ".mat", ".png", ".JPEG")):
        before = file.stat()
        file.write_bytes(bytes(before.st_size))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


FORMS: dict[str, Callable[[Path], object]] = {
    "parquet": write_parts,
    "svhn": write_svhn,
    "tinyimagenet": write_tinyimagenet,
    "folder": write_folder,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_second_process_reads_the_same_images_without_decoding(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    FORMS[name](folder)
    with monkeypatch.context() as without:
        without.setenv("AMATA_CACHE", "off")
        expected = read(name, folder)
        assert not (tmp_path / "cache").exists()
    assert same(read(name, folder), expected)
    hashes = expected.hashes
    if name != "folder":  # whose hash reads files themselves
        spoil(folder)
    again = read(name, folder)
    assert same(expected, again)
    assert again.hashes == hashes
    again.train.x.zero_()  # type: ignore[attr-defined]
    assert same(expected, read(name, folder)), "arrays must be the caller's own"
    spoil(folder)
    for file in folder.rglob("*"):
        os.utime(file, ns=(1, 1))
    with pytest.raises(InputError):
        read(name, folder)


def test_what_decoding_depends_on_has_its_own_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path / "data")
    shapes = [
        load("parquet", root=tmp_path / "data", framing=framing).train.shape
        for framing in (None, Framing(20, 20), Framing(24, 20), None)
    ]
    assert shapes == [(3, 32, 32), (3, 20, 20), (3, 20, 20), (3, 32, 32)]
    assert len(cache.entries()) == 6
    write_parquet(tmp_path / "data" / "train-0.parquet", CONTENTS[:9], range(9))
    write_parquet(tmp_path / "data" / "test-0.parquet", CONTENTS[:9], range(9))
    assert len(read("parquet", tmp_path / "data").train) == 9
    assert len(cache.entries()) == 6, "a changed source replaces its entry"
    monkeypatch.setenv("AMATA_MAX_BYTES", "20000")
    with pytest.raises(InputError, match="above the limit of 20000"):
        read("parquet", tmp_path / "data")


def change_byte(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def become_pickle(entry: Path) -> None:
    np.save(entry / "images.npy", np.array([{}], dtype=object), allow_pickle=True)


def become_pipe(entry: Path) -> None:
    (entry / "images.npy").unlink()
    os.mkfifo(entry / "images.npy")


def become_link(entry: Path) -> None:
    (entry / "labels.npy").rename(entry / "x")
    (entry / "labels.npy").symlink_to("x")


def claim_more(entry: Path) -> None:
    content = (entry / "images.npy").read_bytes()
    (entry / "images.npy").write_bytes(content.replace(b"(30, 3,", b"(9**9,3"[:7]))


def rename_classes(entry: Path) -> None:
    record = json.loads((entry / "record.json").read_text())
    record["names"].reverse()
    (entry / "record.json").write_text(json.dumps(record))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a pixel": lambda entry: change_byte(entry / "images.npy", -1),
    "a label": lambda entry: change_byte(entry / "labels.npy", -8),
    "a header": lambda entry: change_byte(entry / "images.npy", 30),
    "a larger shape": claim_more,
    "cut off": lambda entry: os.truncate(entry / "images.npy", 5000),
    "empty": lambda entry: os.truncate(entry / "images.npy", 0),
    "a pickle": become_pickle,
    "a pipe": become_pipe,
    "a link": become_link,
    "names": rename_classes,
    "no record": lambda entry: (entry / "record.json").unlink(),
    "a record that is a list": lambda entry: (entry / "record.json").write_text("[]"),
    "nested brackets": lambda entry: (entry / "record.json").write_text("[" * 10**5),
    "another user's": lambda entry: os.chown(entry, 12345, -1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_decoded_again(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    write_parts(tmp_path / "data")
    expected = read("parquet", tmp_path / "data")
    entry = next(e.path for e in cache.entries() if "train" in e.about)
    try:
        damage(entry)
    except PermissionError:
        pytest.skip("only root gives files away")
    with caplog.at_level(logging.WARNING, "amata"):
        assert same(expected, read("parquet", tmp_path / "data"))
        assert same(expected, read("parquet", tmp_path / "data"))
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"cached images in {entry} are not used (" in message
    spoil(tmp_path / "data")
    assert same(expected, read("parquet", tmp_path / "data")), "it was not written again"
    assert len(list(entry.parent.glob("[!.]*"))) == 2


def test_a_disk_that_cannot_be_written_is_one_note(
    tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path / "data")
    with full_disk(10_000):
        first = read("parquet", tmp_path / "data")
    assert not cache.entries(), "half an entry was left"
    monkeypatch.setenv("AMATA_CACHE", "/dev/null/x")
    assert same(first, read("parquet", tmp_path / "data"))
    assert [record.getMessage() for record in caplog.records] == [
        f"decoded images cannot be cached in {place} ({reason}); set AMATA_CACHE to another "
        "folder, or to off"
        for place, reason in ((root, "File too large"), ("/dev/null/x", "Not a directory"))
    ]


def test_of_two_processes_one_decodes_and_the_other_waits(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    calls = []

    def decode() -> cache.Decoded:
        calls.append(1)
        return cache.Decoded(X.transpose(0, 3, 1, 2), np.arange(30))

    with ThreadPoolExecutor(4) as pool:  # each opens the lock by itself, as a process does
        found = [pool.submit(cache.cached, [tmp_path / "source"], {}, decode) for _ in range(4)]
        for future in found:
            assert (future.result().images == X.transpose(0, 3, 1, 2)).all()
    assert len(calls) == 1
    assert len(cache.entries()) == 1


def test_the_command_prints_the_note(
    tmp_path: Path, amata: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path / "data")
    monkeypatch.setenv("AMATA_CACHE", "/dev/null/x")
    called = amata("data", "check", tmp_path / "data")
    assert (called.code, called.err.count("\n")) == (0, 1)
    assert called.err.startswith("note: decoded images cannot be cached in /dev/null/x (Not a dir")


def test_the_command_lists_and_clears(
    tmp_path: Path, root: Path, amata: Callable[..., Any]
) -> None:
    write_parts(tmp_path / "data")
    read("parquet", tmp_path / "data")
    (root / "mine.txt").write_text("kept")
    (root / f".{'0' * 32}.{'1' * 8}.part").mkdir()
    result = amata("data", "cache")
    assert str(tmp_path / "data" / "train-0.parquet") in result.out
    assert "unfinished" in result.out
    found = json.loads(amata("data", "cache", "--json").out)
    assert len(found["entries"]) == 3
    assert found["bytes"] == sum(f.stat().st_size for f in root.rglob("*.[nj]*"))
    assert "3 entries" in amata("data", "cache", "--clear").out
    assert [path.name for path in root.iterdir()] == ["mine.txt"]
    assert "0 entries" in amata("data", "cache").out


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes decode, for any number of images, on any machine."""
    monkeypatch.setattr(processes, "LEAST", 2)
    monkeypatch.setattr(processes, "cores", lambda: 2)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("frame", [(32, 32), Framing(28, 24)])
def test_processes_decode_what_a_loop_decodes(
    tmp_path: Path, frame: tuple[int, int] | Framing
) -> None:
    (tmp_path / "é.jpg").write_bytes(CONTENTS[3])
    sources: list[bytes | Path] = [*CONTENTS[:3], tmp_path / "é.jpg", *CONTENTS[4:7]]
    expected = np.stack([pixels_of(source, frame, "") for source in sources])
    out = np.zeros(expected.shape, np.uint8)
    with ThreadPoolExecutor() as thread:  # as beside compiling
        assert thread.submit(processes.decode_in_processes, sources, frame, out).result() == []
    assert (out == expected).all()


@pytest.mark.usefixtures("two")
def test_a_bad_image_has_the_same_error_in_processes() -> None:
    sources = [*CONTENTS[:4], b"bad", CONTENTS[5], b"worse"]
    with pytest.raises(InputError, match="image 4 is not a readable image"):
        stack.decode_stack(sources, (32, 32), "image {}".format)


class Pids(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize(("local", "expected"), [("", 2), ("1", 2), ("2", 1), ("64", 1), ("x", 2)])
def test_workers_are_divided_among_the_processes_of_a_machine(
    local: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    found = in_workers(Pids(), torch.arange(8).split(1), 2, lambda items: items[0])
    assert len(set(found) - {os.getpid()}) == expected
