"""Ctrl-C ends a sweep: `except Exception` does not swallow it."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import amata
from amata.data import as_images
from amata.recipes import load
from amata.reporter import Reporter
from amata.studies.plan import run_plan
from tests.conftest import small_net
from tests.toy import QUICK, StopAt, toy_data

BALL = amata.Linf(0.05)
FIT: dict[str, Any] = {
    "method": amata.PGD(ball=BALL),
    "schedule": amata.Constant(steps=1, step_size=0.05),
    "device": "cpu",
}
STOP = StopAt(0, 1, signal.SIGINT)
RECIPE = [*QUICK, "data.limit=200"]


def search(folder: Path) -> None:
    pytest.importorskip("optuna")
    from amata.studies.search import Search, SearchSettings

    Search(load("mnist5k-amata", RECIPE), SearchSettings(budget=3.0), folder, STOP).run()


class InEvaluation(Reporter):
    """Interrupts the final evaluation."""

    def evaluating(self, *_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)


CALLS: dict[str, Callable[[Path], Any]] = {
    "fit": lambda _: amata.fit(small_net(), toy_data(), progress=STOP, **FIT),
    "fit in validation": lambda _: amata.fit(
        small_net(), toy_data(), toy_data(40), progress=InEvaluation(), **FIT
    ),
    "fit with a run": lambda folder: amata.fit(
        small_net(), toy_data(), run=folder, progress=STOP, **FIT
    ),
    "evaluate": lambda _: amata.evaluate(
        small_net(),
        toy_data(),
        ball=BALL,
        progress=lambda *_: os.kill(os.getpid(), signal.SIGINT),
    ),
    "train": lambda folder: amata.train(load("mnist5k-amata", RECIPE), folder, progress=STOP),
    "train, in the final evaluation": lambda folder: amata.train(
        load("mnist5k-amata", [*RECIPE, "data.valid=0", "train.epochs=1"]),
        folder,
        progress=InEvaluation(),
    ),
    "compare": lambda folder: run_plan([load("mnist5k-amata", RECIPE)], folder, STOP),
    "search": search,
}


class Twice(Reporter):
    """Interrupts in the first batch, and does not wait for the checkpoint."""

    def batch(self, info: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_an_impatient_interrupt_names_the_way_to_resume(tmp_path: Path) -> None:
    recipe = load("mnist5k-amata", RECIPE)
    with pytest.raises(amata.Interrupted, match=r"resume with `amata train --resume .*out`"):
        amata.train(recipe, tmp_path / "out", progress=Twice())


class InValidation(Reporter):
    """Ends the process politely once some images have met every attack."""

    def evaluating(self, attack: str, done: int, *_: object, **__: object) -> None:
        if attack != "clean" and done >= 20:
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupt_in_validation_names_the_way_to_resume(tmp_path: Path) -> None:
    recipe = load("mnist5k-amata", [*RECIPE, "data.valid=40", "eval.batch_size=10"])
    with pytest.raises(amata.Interrupted, match=r"resume with `amata train --resume") as stopped:
        amata.train(recipe, tmp_path / "out", progress=InValidation())
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert stopped.value.result is None, "the accuracy of some held-out images is no result"


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_leaves_a_sweep(call: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        CALLS[call](tmp_path / "out")
    assert not isinstance(caught.value, Exception), "a sweep would go on"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_worker_processes_ignore_ctrl_c() -> None:
    """A terminal sends it to them too, while the main process waits for their batch."""
    assert as_images(Ignoring(), workers=1).labels.tolist() == [1, 1]


class Ignoring(Dataset[Any]):
    """Labels say whether the process that reads them ignores the signal."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(1, 6, 6), int(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)


def test_messages_of_a_silent_fit_go_to_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    from amata.metrics import EpochRow

    class Later(Reporter):
        def epoch(self, row: EpochRow) -> None:
            self.note("an epoch is done")

    with caplog.at_level(logging.INFO, "amata"):
        amata.fit(small_net(), toy_data(), epochs=1, progress=Later(), **FIT)
    outputs, done = caplog.record_tuples
    assert "has 4 outputs" in outputs[2]
    assert done == ("amata", logging.INFO, "an epoch is done")
