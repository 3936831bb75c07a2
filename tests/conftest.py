"""Small networks, data and a way to call the command that the tests share."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from amata.cli import main

ROOT = Path(__file__).parents[1]
# Set by pytest-xdist; tables and lines would adapt to it.
os.environ.pop("COLUMNS", None)
# For commands that a test starts: this checkout's package and tests before what the caller set, and
# one thread, because the order of a sum, and so its last bit, may depend on the number of threads.
PATHS = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}

WHOLE = pytest.mark.skipif(
    not (ROOT / "evidence").is_dir(), reason="the sdist has no evidence/ and no workflows"
)
"""For tests of files that only the repository has."""

torch.set_num_threads(1)
# How long an example takes says something about the machine alone, and no test fails by chance.
settings.register_profile(
    "amata", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("amata")


def pytest_configure() -> None:
    """What tests trust is not remembered beyond them. Processes that a test starts import this
    file too, but share the folder. Behind an & of a script, Ctrl-C is ignored; not by the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = tempfile.mkdtemp(prefix="amata-state-")
    own = {"AMATA_STATE": state, "AMATA_CACHE": os.path.join(state, "decoded")}
    os.environ.update(own)
    ENV.update(own)


def pytest_unconfigure() -> None:
    shutil.rmtree(ENV["AMATA_STATE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A network without a seed of its own is the same in every order of the tests."""
    torch.manual_seed(0)


class Linear(nn.Module):
    """z = W x + b: every worst case is known in closed form."""

    def __init__(self, classes: int, pixels: int = 36, seed: int = 0) -> None:
        super().__init__()
        self.fc = nn.Linear(pixels, classes)
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.fc.weight.copy_(torch.randn(self.fc.weight.shape, generator=rng))
            self.fc.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def small_net(seed: int = 0, *, smooth: bool = False) -> nn.Sequential:
    """A network with everything an attack could disturb: BatchNorm, dropout, biases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        act = nn.Softplus if smooth else nn.ReLU
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            act(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(8 * 36, 12),
            act(),
            nn.Linear(12, 4),
        )


def flat_net(in_channels: int, classes: int, side: int = 12) -> nn.Module:
    """The least that is a network: a linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * side * side, classes))


def dropout_net() -> nn.Module:
    """A quick network for 28x28 digits with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=4),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(6 * 36, 10),
    )


def images(n: int = 6, seed: int = 0, side: int = 6, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(
        n, 1, side, side, generator=torch.Generator().manual_seed(seed)
    )


def labels(n: int = 6, classes: int = 4, seed: int = 0) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed + 100))


@pytest.fixture
def short_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack with its four parts, but few iterations: the real numbers take half a minute."""
    monkeypatch.setattr("amata.attacks.auto_attack.ITERATIONS", 4)
    monkeypatch.setattr("amata.attacks.auto_attack.QUERIES", 20)


class Called(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def amata(capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Run the command in this process: its exit status and what it printed."""

    def call(*arguments: str | Path) -> Called:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Called(int(exit_.value.code or 0), out, err)

    return call
