"""What counts as training time, and the time that is left."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amata.reporter import BatchInfo, Reporter
from tests.conftest import small_net
from tests.toy import fit, toy_data, toy_recipe


def test_training_time_counts_what_the_reporter_waits_for_and_not_the_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Reporter):
        def batch(self, info: BatchInfo) -> None:
            time.sleep(0.02)  # such as reading the loss off a busy device

    recipe = toy_recipe("train.epochs=1", "train.save_minutes=1e-9", "train.tensorboard=false")
    monkeypatch.setattr(
        sys.modules["amata.training.saver"], "save_checkpoint", lambda *_: time.sleep(0.3)
    )
    fitted = fit(small_net(), toy_data(), None, recipe, run=tmp_path / "run", reporter=Slow())
    assert 6 * 0.02 <= fitted.train_seconds < 6 * 0.02 + 5 * 0.3


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


def test_time_spent_waiting_for_data_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    from amata.console import ConsoleReporter

    class Slow:
        """Batches that take their time."""

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            x, y = toy_data(48)
            for part in range(3):
                time.sleep(0.2)
                yield x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16]

    recipe = toy_recipe("train.epochs=1")
    slow = fit(small_net(), Slow(), None, recipe, reporter=ConsoleReporter()).epochs[0]
    assert 0.6 <= slow["data_seconds"] < slow["train_seconds"]
    assert re.search(r"epoch   1 .* \d\d% waiting for data", capfd.readouterr().err)
    quick = fit(small_net(), toy_data(48), None, recipe, reporter=Reporter()).epochs[0]
    assert quick["data_seconds"] < 0.6
