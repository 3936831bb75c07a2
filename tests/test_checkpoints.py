"""Checkpoints on disk: damaged ones, full disks, other recipes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from amata.errors import AmataError, InputError
from amata.metrics import EpochRow
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.checkpoint import best_file, load_checkpoint, save_checkpoint
from amata.runs.files import save_tensors
from amata.schedules import Choice, Control, Response
from amata.training import Interrupted
from amata.training.state import TrainState
from tests.conftest import small_net
from tests.disk import full_disk
from tests.toy import StopAt, fit, toy_data, toy_recipe

ROW: EpochRow = {
    "epoch": 0,
    "steps": 2,
    "step_size": 0.1,
    "loss": 0.5,
    "train_seconds": 1.0,
    "grad_evals": 10,
    "grad_evals_per_image": 3.0,
    "lr": 0.1,
}


def test_a_damaged_newest_checkpoint_is_reported_and_skipped(tmp_path: Path) -> None:
    recipe = toy_recipe("train.tensorboard=false")
    fit(small_net(), toy_data(), toy_data(40), recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(
            small_net(),
            toy_data(),
            toy_data(40),
            recipe,
            run=tmp_path / "cut",
            reporter=StopAt(2, 3),
        )
    newest = tmp_path / "cut" / "checkpoints" / "00002-0000003.safetensors"
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1  # one flipped bit, which the format itself would not notice
    newest.write_bytes(content)
    notes: list[str] = []

    class Listen(Reporter):
        def note(self, text: str) -> None:
            notes.append(text)

    run, _ = RunFolder.open(tmp_path / "cut")
    fit(small_net(), toy_data(), toy_data(40), recipe, run=run, reporter=Listen())
    assert any("00002-0000003 is damaged" in n and "falling back" in n for n in notes)
    assert any("resumed at epoch 3" in n for n in notes)
    assert (tmp_path / "cut" / "last.safetensors").read_bytes() == (
        tmp_path / "whole" / "last.safetensors"
    ).read_bytes()


def test_two_checkpoints_are_kept_and_all_damaged_is_an_error(tmp_path: Path) -> None:
    for batch in range(1, 5):
        save_checkpoint(tmp_path, 0, batch, {"t": torch.ones(3) * batch}, {"fingerprint": "f"})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"00000-000000{b}.{s}" for b in (3, 4) for s in ("json", "safetensors")
    ]
    for path in tmp_path.glob("*.json"):
        path.write_text("{")
    with pytest.raises(AmataError, match=r"no checkpoint in .* can be read"):
        load_checkpoint(tmp_path, "f", lambda _: None)


def test_the_newest_checkpoint_that_begins_an_epoch_is_kept_too(tmp_path: Path) -> None:
    """The guard may have to go back to it."""
    for epoch, batch in ((0, 0), (1, 0), (1, 1), (1, 2), (1, 3)):
        save_checkpoint(tmp_path, epoch, batch, {"t": torch.ones(3)}, {"fingerprint": "f"})
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == [
        f"00001-000000{batch}" for batch in (0, 2, 3)
    ]


def test_half_written_files_of_earlier_checkpoints_are_removed(tmp_path: Path) -> None:
    for batch in (1, 9):
        (tmp_path / f".00000-000000{batch}.safetensors.part").write_bytes(b"half")
    save_checkpoint(tmp_path, 0, 2, {"t": torch.ones(3)}, {"fingerprint": "f"})
    assert [p.name for p in tmp_path.glob(".*.part")] == [".00000-0000009.safetensors.part"]


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 0, 1, {"t": torch.ones(3)}, {"fingerprint": "f"})
    with pytest.raises(InputError, match="belongs to another recipe"):
        load_checkpoint(tmp_path, "g", print)


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 0, 1, {"t": torch.ones(3)}, {"fingerprint": "f"})
    with (
        full_disk(100),
        pytest.raises(
            AmataError,
            match=r"cannot write .*00000-0000002\.safetensors \(File too large\).*free some space",
        ),
    ):
        save_checkpoint(tmp_path, 0, 2, {"t": torch.ones(3)}, {"fingerprint": "f"})
    loaded = load_checkpoint(tmp_path, "f", print)
    assert loaded is not None
    assert loaded[0]["t"].tolist() == [1, 1, 1]
    # and the next try works
    save_checkpoint(tmp_path, 0, 2, {"t": torch.ones(3) * 2}, {"fingerprint": "f"})


def test_a_flipped_bit_of_a_checkpoints_record_is_noticed(tmp_path: Path) -> None:
    """Such as an epoch 2 that becomes 0, or a learning rate that becomes five times as high."""
    state = {**TrainState(epoch=2, lr_scale=1.0, rows=[ROW]).to_json(), "fingerprint": "f"}
    for batch in (1, 2):
        save_checkpoint(tmp_path, 2, batch, {"t": torch.ones(1)}, {**state, "batch": batch})
    newest = tmp_path / "00002-0000002.json"
    content, fell_back = newest.read_bytes(), 0
    for bit in range(0, 8 * len(content), 29):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(changed)
        loaded = load_checkpoint(tmp_path, "f", lambda _: None)
        assert loaded is not None
        batch = loaded[1].pop("batch")
        fell_back += batch == 1
        assert TrainState.from_json({**loaded[1], "batch": 0}) == TrainState.from_json(
            {**state, "batch": 0}
        )
    assert fell_back > 0.6 * len(content) * 8 / 29  # the rest is white space


def test_a_checkpoint_without_its_best_weights_is_skipped(tmp_path: Path) -> None:
    for epoch, best in ((1, 0), (2, 1)):
        save_tensors(best_file(tmp_path, best), {"t": torch.ones(1)})
        record = {"fingerprint": "f", "best_epoch": best}
        save_checkpoint(tmp_path, epoch, 0, {"t": torch.ones(1)}, record)
    content = bytearray(best_file(tmp_path, 1).read_bytes())
    content[-1] ^= 1
    best_file(tmp_path, 1).write_bytes(content)
    notes: list[str] = []
    loaded = load_checkpoint(tmp_path, "f", notes.append)
    assert loaded is not None
    assert loaded[1]["best_epoch"] == 0
    assert "best-00001.safetensors is damaged" in notes[0]


def test_a_checkpoint_of_another_model_is_one_line(tmp_path: Path) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.epochs=1")
    data = toy_data(32)
    with pytest.raises(Interrupted):
        fit(small_net(), data, None, recipe, run=tmp_path / "run", reporter=StopAt(0, 1))
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4))
    message = (
        r"^the checkpoint does not fit this model: '1.weight' has shape [^;]+ \(and [^;()]+\); "
    )
    with pytest.raises(InputError, match=message):
        fit(other, data, None, recipe, run=RunFolder(tmp_path / "run"))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "x"},
        {"epoch": -1},
        {"epoch": 10**400},
        {"batch": -1},
        {"spent": {"train_seconds": "x"}},
        {"rows": [1]},
        {"rows": "abc"},
        {"rows": [{**ROW, "steps": 10**400}]},
        {"best_accuracy": "x"},
        {"lr_scale": 1e308},
        {"extra_steps": 10**9},
        {"choice": [1]},
        {"curves": [[1]]},
    ],
)
def test_a_strangers_checkpoint_with_valid_checksums_is_refused(change: dict[str, Any]) -> None:
    chosen = Choice(Control(2, 0.1), 0.04)
    state = TrainState(epoch=1, rows=[ROW], choice=chosen, curves=[[Response(chosen[0], 1.0, 2)]])
    record = json.loads(json.dumps({**state.to_json(), "fingerprint": "f"}))
    assert TrainState.from_json(record) == state
    with pytest.raises(ValueError, match="validation error"):
        TrainState.from_json({**record, **change})
