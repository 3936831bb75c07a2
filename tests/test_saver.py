"""Asynchronous checkpointing."""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import torch

from amata.errors import InputError
from amata.reporter import BatchInfo, Reporter
from tests.conftest import small_net
from tests.toy import StopAt, fit, newest, toy_data, toy_recipe


def test_a_long_epoch_is_saved_every_few_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            seen.append(newest(tmp_path / "run"))

    class AtOnce(ThreadPoolExecutor):
        """Done when it is handed over, so that what is on the disk does not hang on how fast that
        is."""

        def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(call, *args, **kwargs)
            wait([future])
            return future

    monkeypatch.setattr(sys.modules["amata.training.saver"], "ThreadPoolExecutor", AtOnce)
    fit(
        small_net(),
        toy_data(),
        None,
        toy_recipe("train.save_minutes=1e-9", "train.tensorboard=false"),
        run=tmp_path / "run",
        reporter=Watch(),
    )
    assert seen[:6] == ["", *(f"00000-000000{batch}.json" for batch in range(1, 6))]


def test_a_disk_slower_than_epochs_gets_fewer_checkpoints_and_each_is_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amata.runs import checkpoint
    from amata.training import saver

    recipe, written = toy_recipe("train.tensorboard=false", "train.epochs=12", "data.valid=16"), {}
    data, valid = toy_data(), toy_data(16)
    kept = fit(small_net(), data, valid, recipe, run=tmp_path / "quick")

    def slowly(
        folder: Path,
        epoch: int,
        batch: int,
        tensors: dict[str, torch.Tensor],
        record: dict[str, Any],
    ) -> None:
        time.sleep(0.5)
        checkpoint.save_checkpoint(folder, epoch, batch, tensors, record)
        written[epoch] = {k: v.clone() for k, v in tensors.items()}

    def note(
        folder: Path,
        epoch: int,
        batch: int,
        tensors: dict[str, torch.Tensor],
        record: dict[str, Any],
    ) -> None:
        at_once[epoch] = {k: v.clone() for k, v in tensors.items()}

    monkeypatch.setattr(saver, "PATIENCE", 0.0)
    monkeypatch.setattr(saver, "save_checkpoint", slowly)
    slow = fit(small_net(), data, valid, recipe, run=tmp_path / "slow")
    assert 12 in written
    assert 1 < len(written) < 12
    at_once: dict[int, dict[str, torch.Tensor]] = {}
    monkeypatch.setattr(saver, "PATIENCE", 10.0)
    monkeypatch.setattr(saver, "save_checkpoint", note)
    fit(small_net(), data, valid, recipe, run=tmp_path / "note")
    assert sorted(at_once) == list(range(1, 13))
    for epoch, tensors in written.items():
        assert all(torch.equal(v, at_once[epoch][k]) for k, v in tensors.items()), epoch
    assert slow.best_epoch == kept.best_epoch
    for name in ("model.safetensors", "last.safetensors"):
        assert (tmp_path / "slow" / name).read_bytes() == (tmp_path / "quick" / name).read_bytes()


def test_a_best_epoch_whose_checkpoint_was_left_out_is_saved_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment, the run can be taken up: the best weights that a checkpoint names are
    there before it is."""
    from amata.runs import checkpoint
    from amata.training import saver

    def slowly(
        folder: Path,
        epoch: int,
        batch: int,
        tensors: dict[str, torch.Tensor],
        record: dict[str, Any],
    ) -> None:
        assert (folder / f"best-{record['best_epoch']:05d}.safetensors").is_file()
        time.sleep(0.2)
        checkpoint.save_checkpoint(folder, epoch, batch, tensors, record)

    monkeypatch.setattr(saver, "PATIENCE", 0.0)
    monkeypatch.setattr(saver, "save_checkpoint", slowly)
    fitted = fit(
        small_net(),
        toy_data(),
        toy_data(16),
        toy_recipe("train.tensorboard=false", "train.epochs=20"),
        run=tmp_path / "run",
    )
    assert fitted.best_epoch is not None


def test_an_interrupt_that_cannot_save_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amata.training import saver

    def full(*_: Any) -> None:
        raise InputError("cannot write (No space left on device)")

    monkeypatch.setattr(saver, "save_checkpoint", full)
    recipe = toy_recipe("train.tensorboard=false")
    with pytest.raises(InputError, match="No space left"):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=StopAt(0, 2))


def test_a_failed_write_is_told_before_the_next_batch_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amata.training import saver

    seen: list[tuple[int, int]] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            seen.append((info.epoch, info.batch))
            time.sleep(0.2)

    def full(*_: Any) -> None:
        raise InputError("cannot write (No space left on device)")

    monkeypatch.setattr(saver, "save_checkpoint", full)
    with pytest.raises(InputError, match="No space left"):
        fit(
            small_net(),
            toy_data(),
            None,
            toy_recipe("train.tensorboard=false"),
            run=tmp_path / "run",
            reporter=Watch(),
        )
    assert seen[-1] <= (1, 2)
