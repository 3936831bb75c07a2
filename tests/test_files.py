"""Files of tensors and of records: atomic, checked, and never outside their folder."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from amata.errors import InputError
from amata.models import load_weights
from amata.runs import files
from amata.runs.files import (
    NAMES,
    append_line,
    describe_weights,
    link_atomic,
    read_record,
    read_text,
    remove_partial,
    save_tensors,
    write_atomic,
    write_json,
    write_record,
)
from amata.tensors import read_tensors


def test_files_of_tensors_are_what_the_safetensors_library_reads_and_writes(tmp_path: Path) -> None:
    wide = torch.randn(3, 4, 5)
    tensors = {f"x {dtype}": (100 * wide.abs()).to(dtype) for dtype in NAMES}
    tensors |= {
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "turned": wide.permute(2, 0, 1),
        "ünï": wide[1:, ::2],
    }
    save_tensors(tmp_path / "ours.safetensors", tensors, {"epoch": 3})
    content = (tmp_path / "ours.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert describe_weights(tmp_path / "ours.safetensors") == {"epoch": 3}
    for name, entry in header.items():
        if name in tensors:
            assert entry["data_offsets"][0] % tensors[name].element_size() == 0
    read = load_file(tmp_path / "ours.safetensors")
    save_file({k: v.contiguous() for k, v in tensors.items()}, tmp_path / "theirs.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in load_file(tmp_path / "theirs.safetensors").items():
        assert read[name].dtype == tensor.dtype == tensors[name].dtype
        for other in (read[name], tensors[name]):
            assert other.shape == tensor.shape
            assert torch.equal(
                *(t.contiguous().flatten().view(torch.uint8) for t in (other, tensor))
            )


def flips(path: Path, step: int = 1) -> Iterator[None]:
    """The file with each of its bits flipped, or every `step`-th, one after the other."""
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        yield
    path.write_bytes(content)


def same_or_refused(path: Path, read: Callable[[Path], Any], step: int = 1) -> int:
    """The number of flipped bits that are noticed. The others, in layout, change nothing."""
    whole, noticed = read(path), 0
    for _ in flips(path, step):
        try:
            assert read(path) == whole
        except InputError:
            noticed += 1
    return noticed


def test_a_flipped_bit_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = {"epoch": 2, "lr_scale": 1.0, "name": "x", "rows": [{"loss": 0.25, "ok": True}]}
    write_record(path, record)
    assert read_record(path) == record
    # line breaks and indents may become other white space
    assert same_or_refused(path, read_record, 5) > 0.95 * 8 * (len(path.read_bytes()) - 30) / 5


def test_a_record_of_an_earlier_version_may_hold_long_text(tmp_path: Path) -> None:
    record = {"platform": "Linux".ljust(64, "-")}
    write_json(tmp_path / "record.json", record)
    assert read_record(tmp_path / "record.json") == record


def test_a_flipped_bit_of_weights_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    layer = torch.nn.Linear(2, 2)
    save_tensors(path, layer.state_dict(), {"recipe": "toy", "epoch": 1})

    def read(path: Path) -> Any:
        load_weights(torch.nn.Linear(2, 2), path)  # as `amata eval` and others load them
        return describe_weights(path), {k: v.tolist() for k, v in read_tensors(path).items()}

    assert same_or_refused(path, read, 5) > 0.95 * 8 * path.stat().st_size / 5


def test_weights_of_other_programs_and_earlier_versions_load(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(3)}
    for metadata in (None, {"format": "pt"}, {"amata": "{}", "format": "pt"}, {"author": "x"}):
        save_file(tensors, tmp_path / "w.safetensors", metadata=metadata)
        assert read_tensors(tmp_path / "w.safetensors")["w"].tolist() == [1, 1, 1]


def test_weights_saved_again_by_another_program_are_still_checked(tmp_path: Path) -> None:
    """The checksum is of the content, not of the layout of the file."""
    path = tmp_path / "w.safetensors"
    checksum = save_tensors(path, {"a": torch.ones(3), "b": torch.arange(4)}, {"epoch": 1})
    metadata = {"amata": '{"epoch": 1}', "amata_sha256": checksum}
    save_file({"b": torch.arange(4), "a": torch.ones(3)}, path, metadata=metadata)
    read_tensors(path, checksum)
    save_file({"b": torch.arange(4), "a": torch.zeros(3)}, path, metadata=metadata)
    with pytest.raises(InputError, match="its checksum is wrong"):
        read_tensors(path)
    save_tensors(path, {"a": torch.zeros(3)})
    with pytest.raises(InputError, match="another file than was saved"):
        read_tensors(path, checksum)


@pytest.mark.parametrize("name", [".f.json.part", "f.json"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("mine")
    folder.mkdir()
    (folder / name).symlink_to(outside)
    write_atomic(folder / "f.json", b"new")
    write_json(folder / "f.json", {})
    write_atomic(folder / "source", b"linked")
    link_atomic(folder / "f.json", folder / "source")
    assert (folder / "f.json").read_bytes() == b"linked"
    assert not (folder / "f.json").is_symlink()
    (folder / "line").symlink_to(outside)
    with pytest.raises(InputError, match=r"cannot write .*line"):
        append_line(folder / "line", "text")
    assert outside.read_text() == "mine"


def test_parts_that_a_kill_left_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "f.json", b"half")
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".mine.part").write_text("of somebody else")
    remove_partial(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".mine.part"]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda p: os.mkfifo(p), "not a regular file"),
        (lambda p: p.mkdir(), "not a regular file"),
        (lambda p: p.write_bytes(b"\xff{}"), "not UTF-8"),
        (lambda p: p.write_text("x" * 1001), "has more than"),
        (lambda p: None, "No such file"),
    ],
)
def test_what_is_not_a_text_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Any], line: str
) -> None:
    monkeypatch.setattr(files, "LIMIT", 1000)
    make(tmp_path / "f")
    with pytest.raises(InputError, match=line):
        read_text(tmp_path / "f")
