"""Files of tensors."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from amata.runs.files import NAMES, describe_weights, save_tensors


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
