"""What counts as training time, and the time that is left."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from amata.console import ConsoleReporter
from amata.data import feed
from amata.reporter import BatchInfo, Reporter
from amata.training import clock, saver
from tests.conftest import small_net
from tests.disk import Disk
from tests.toy import fit, toy_data, toy_recipe


class Time:
    """Stands still, but for what a test adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (clock, feed):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now


def test_training_time_counts_what_the_reporter_waits_for_and_not_the_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, saves = Time(monkeypatch), []

    class Slow(Reporter):
        def batch(self, info: BatchInfo) -> None:
            time.now += 2  # such as reading the loss off a busy device

    def save(*_: Any) -> None:
        saves.append(time.now)
        time.now += 30

    Disk(monkeypatch)
    monkeypatch.setattr(saver, "save_checkpoint", save)
    recipe = toy_recipe("train.epochs=1", "train.save_minutes=1e-9", "train.tensorboard=false")
    fitted = fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=Slow())
    assert len(saves) == 6
    assert fitted.train_seconds == 6 * 2


def test_time_left_follows_the_cost_of_the_epochs_to_come() -> None:
    infos: list[BatchInfo] = []

    class Watch(Reporter):
        def batch(self, info: BatchInfo) -> None:
            infos.append(info)

    fit(small_net(), toy_data(), None, toy_recipe(), reporter=Watch())
    assert infos[-1].share == pytest.approx(1)
    first_epoch = [m for m in infos if m.epoch == 0][-1]
    assert first_epoch.share == pytest.approx(3 / 14)
    assert first_epoch.seconds_left is not None
    assert math.isclose(infos[-1].seconds_left or 0, 0, abs_tol=1e-9)


def test_time_spent_waiting_for_data_is_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)

    class Slow:
        """Three batches of data, each after two seconds."""

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            x, y = toy_data(48)
            for part in range(3):
                time.now += 2
                yield x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16]

    class Report(ConsoleReporter):
        def batch(self, info: BatchInfo) -> None:
            time.now += 1
            super().batch(info)

    recipe = toy_recipe("train.epochs=1")
    row = fit(small_net(), Slow(), None, recipe, reporter=Report()).epochs[0]
    assert (row["data_seconds"], row["train_seconds"]) == (6, 9)
    assert re.search(r"epoch   1 .* 67% waiting for data", capfd.readouterr().err)
