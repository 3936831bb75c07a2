"""The script of each of two processes that differ, in tests/test_ranks.py: python tests/unequal.py
FOLDER, with the variables that torchrun sets."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import amata
from amata import recipes
from amata.distributed import init_distributed
from amata.errors import InputError
from amata.training.experiment import train
from tests.conftest import Linear, small_net
from tests.toy import QUICK, toy_data


def fit(**change: Any) -> None:
    given = {
        "model": small_net(),
        "train": toy_data(32),
        "method": amata.PGD(ball=amata.Linf(0.05)),
        "schedule": amata.Constant(steps=1, step_size=0.05),
        "epochs": 1,
        "device": "cpu",
        "progress": False,
        **change,
    }
    amata.fit(**given)


def other_version(rank: int, folder: Path) -> None:
    right = torch.__version__
    try:
        torch.__version__ = f"{right}{rank}"  # type: ignore[assignment]
        fit(run=folder / "version")
    finally:
        torch.__version__ = right


def command(rank: int, folder: Path) -> None:
    options = [*QUICK, "train.epochs=1", f"data.augment={'flip' if rank else 'none'}"]
    train(recipes.load("mnist5k-amata", options), folder / "command")


def pair(rank: int) -> Any:
    x, y = toy_data(32)
    return (x + 1e-3 * rank).clamp(0, 1), y


CASES: dict[str, tuple[Callable[[int, Path], None], str | None]] = {
    "seed": (
        lambda rank, folder: fit(seed=rank, run=folder / "seed"),
        "rank 1 has train.seed = 1 and rank 0 has 0; start all processes with the same recipe",
    ),
    "learning rate": (
        lambda rank, _: fit(optim=amata.SGD(lr=0.1 + rank)),
        "rank 1 has optim.lr = 1.1 and rank 0 has 0.1;",
    ),
    "schedule": (
        lambda rank, _: fit(schedule=lambda epoch, epochs: (1 + rank, 0.05)),
        "rank 1 has schedule.controls = [[2, 0.05]] and rank 0 has [[1, 0.05]];",
    ),
    "pixels": (lambda rank, _: fit(train=pair(rank)), "rank 1 has data.sha256 = '"),
    "validation": (
        lambda rank, _: fit(valid=None if rank else [toy_data(32)]),
        "rank 1 has data.has a validation set = False and rank 0 has True;",
    ),
    "model": (
        lambda rank, _: fit(model=Linear(2 + rank)),
        "rank 1 has model.parameters = 111 and rank 0 has 74;",
    ),
    "version": (other_version, "rank 1 has the version of torch = '"),
    "command": (command, "rank 1 has data.augment = 'flip' and rank 0 has 'none';"),
    "nothing": (lambda rank, folder: fit(run=folder / "nothing"), None),
    "own streams": (lambda rank, _: fit(train=[pair(rank), pair(rank)]), None),
}


def main(folder: Path) -> None:
    found: dict[str, str | None] = {}
    with init_distributed(torch.device("cpu")) as ranks:
        for name, (case, _) in CASES.items():
            try:
                case(ranks.rank, folder)
                found[name] = None
            except InputError as error:
                found[name] = str(error)
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
