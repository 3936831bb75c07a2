"""Asynchronous checkpointing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import amata as library
from amata.errors import InputError
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.runs.checkpoint import save_checkpoint
from amata.runs.files import describe_weights, save_tensors
from amata.training import Interrupted, saver
from tests.conftest import images, labels, small_net
from tests.disk import Disk
from tests.toy import Notes, StopAt, fit, newest, toy_data, toy_recipe


def test_a_long_epoch_is_saved_every_few_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            seen.append(newest(tmp_path / "run"))

    Disk(monkeypatch)
    fit(
        small_net(),
        toy_data(),
        None,
        toy_recipe("train.save_minutes=1e-9", "train.tensorboard=false", "train.epochs=1"),
        run=tmp_path / "run",
        reporter=Watch(),
    )
    assert seen == ["", *(f"00000-000000{batch}.json" for batch in range(1, 6))]


def test_a_slow_disk_gets_fewer_checkpoints_and_each_is_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.epochs=6")
    saved: dict[str, dict[int, dict[str, Tensor]]] = {"quick": {}, "slow": {}}

    class Flush(Reporter):
        """Lets the disk finish at the end of the third epoch."""

        def epoch(self, row: Any) -> None:
            if row["epoch"] == 2:
                disk.flush()

    for speed in saved:

        def save(
            folder: Path,
            epoch: int,
            batch: int,
            tensors: dict[str, Tensor],
            record: dict[str, Any],
            speed: str = speed,
        ) -> None:
            save_checkpoint(folder, epoch, batch, tensors, record)
            saved[speed][epoch] = {k: v.clone() for k, v in tensors.items()}

        disk = Disk(monkeypatch, slow=speed == "slow")
        monkeypatch.setattr(saver, "save_checkpoint", save)
        run = tmp_path / speed
        fit(small_net(), toy_data(), toy_data(16), recipe, run=run, reporter=Flush())
    assert list(saved["quick"]) == [1, 2, 3, 4, 5, 6]
    # The write of epoch 1 takes until the end of epoch 3, that of epoch 4 until the last.
    assert list(saved["slow"]) == [1, 4, 6]
    for epoch, tensors in saved["slow"].items():
        assert all(torch.equal(v, saved["quick"][epoch][k]) for k, v in tensors.items()), epoch
    for name in ("model.safetensors", "last.safetensors"):
        assert (tmp_path / "slow" / name).read_bytes() == (tmp_path / "quick" / name).read_bytes()


class Best(Reporter):
    """Makes one epoch the best: at the end of every other one the last layer is negated."""

    def __init__(self, net: torch.nn.Module, epoch: int) -> None:
        self.last, self.best = list(net.parameters())[-2:], epoch

    @torch.no_grad()
    def batch(self, info: BatchInfo) -> None:
        ends = info.batch == info.batches and info.epoch != self.best
        begins = info.batch == 1 and info.epoch not in (0, self.best + 1)
        if ends or begins:
            for p in self.last:
                p.neg_()


def test_the_best_weights_of_an_epoch_without_a_checkpoint_come_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed can be resumed only if the best weights are there before a checkpoint
    that names them."""
    recipe = toy_recipe("train.tensorboard=false", "train.guard=ignore")
    bests = []

    def save(
        folder: Path, epoch: int, batch: int, tensors: dict[str, Tensor], record: dict[str, Any]
    ) -> None:
        bests.append((epoch, record["best_epoch"]))
        assert (folder / f"best-{record['best_epoch']:05d}.safetensors").is_file()
        save_checkpoint(folder, epoch, batch, tensors, record)

    Disk(monkeypatch, slow=True)
    monkeypatch.setattr(saver, "save_checkpoint", save)
    net = small_net()
    fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "run", reporter=Best(net, 1))
    assert bests == [(1, 0), (4, 1)]


def test_the_best_weights_of_a_failed_write_come_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.guard=ignore")
    net = small_net()
    fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "whole", reporter=Best(net, 0))

    class Stop(Best):
        def batch(self, info: BatchInfo) -> None:
            super().batch(info)
            StopAt(1, 2).batch(info)

    def fail_once(*args: Any) -> None:
        if not failed:
            failed.append(args)
            full()
        save_tensors(*args)

    Disk(monkeypatch, slow=True)
    monkeypatch.setattr(saver, "save_tensors", fail_once)
    net, failed = small_net(), list[Any]()
    with pytest.raises(Interrupted):
        fit(net, toy_data(), toy_data(40), recipe, run=tmp_path / "cut", reporter=Stop(net, 0))
    assert failed
    net, (run, _) = small_net(), RunFolder.open(tmp_path / "cut")
    fit(net, toy_data(), toy_data(40), recipe, run=run, reporter=Best(net, 0))
    for name in ("model.safetensors", "last.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_failed_write_ends_the_run_after_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            seen.append((info.epoch, info.batch))

    Disk(monkeypatch)
    monkeypatch.setattr(saver, "save_checkpoint", full)
    recipe = toy_recipe("train.tensorboard=false")
    with pytest.raises(InputError, match="No space left"):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=Watch())
    assert seen[-1] == (1, 1)


def test_an_interrupt_that_cannot_save_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "save_checkpoint", full)
    recipe = toy_recipe("train.tensorboard=false")
    with pytest.raises(Interrupted, match=r"interrupted; .*No space left"):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=StopAt(0, 2))


def full(*_: Any) -> None:
    raise InputError("cannot write (No space left on device)")


def test_weights_know_classes_and_shape_also_if_the_split_is_deleted(tmp_path: Path) -> None:
    found = {}
    for name in ("kept", "deleted"):
        run = tmp_path / name / "run"

        class Deletes(Reporter):
            def epoch(self, row: Any, run: Path = run, gone: bool = name == "deleted") -> None:
                if gone:
                    (run / "split.json").unlink(missing_ok=True)

        recipe = toy_recipe("train.tensorboard=false", "train.epochs=2")
        library.fit(
            small_net(), (images(12), labels(12)), recipe=recipe, run=run, progress=Deletes()
        )
        found[name] = describe_weights(run / "last.safetensors")
    assert found["deleted"] == found["kept"]
    assert {"classes", "shape"} <= set(found["kept"])


def test_large_checkpoints_are_written_less_often_and_a_killed_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a collapse guard that looks at every epoch: it goes back to a state in memory."""
    recipe = toy_recipe("method.name=fgsm-pgi", "schedule.k_min=1", "schedule.k_max=1")
    fit(small_net(), toy_data(), toy_data(40), recipe, run=tmp_path / "whole")

    class Killed(Notes):
        def epoch(self, row: Any) -> None:
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(saver, "RATE", 1)
    killed, run = Killed(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(small_net(), toy_data(), toy_data(40), recipe, run=run, reporter=killed)
    assert newest(run) == "00001-0000000.json"  # the first; the next would follow hours later
    assert sum("not every epoch is saved" in note for note in killed.notes) == 1
    fit(small_net(), toy_data(), toy_data(40), recipe, run=RunFolder.open(run)[0])
    for name in ("model.safetensors", "last.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_copies_overwrite_the_last_ones_and_follow_a_change_of_shape() -> None:
    copies, x = saver.Copies(), torch.arange(6.0)
    first = copies.of({"x": x, "gone": x})
    x += 1
    assert torch.equal(first["x"], torch.arange(6.0))
    second = copies.of({"x": x})
    assert second.keys() == {"x"}
    assert second["x"].data_ptr() == first["x"].data_ptr()
    assert torch.equal(second["x"], x)
    third = copies.of({"x": x[:3].double(), "y": x})
    assert torch.equal(third["x"], x[:3].double())
    assert copies.size == 3 * 8 + 6 * 4
