"""Several processes train the same network as one: every method, with checkpoints, and after a
process dies."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from amata import recipes
from amata.distributed import (
    Ranks,
    SyncBatchNorm,
    convert_sync_batchnorm,
    current,
    revert_sync_batchnorm,
)
from amata.engine import PlainNet
from amata.errors import InputError
from amata.evaluation import unpack
from amata.tensors import read_tensors
from amata.training.checks import check_divisible
from amata.training.experiment import resume, train
from tests.conftest import ENV, ROOT, dropout_net, images, labels, small_net
from tests.processes import AVERAGED, CASES, NORMED, normed, trained
from tests.toy import QUICK
from tests.unequal import CASES as UNEQUAL


def torchrun(*arguments: str | Path, restarts: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        str(restarts),
    ]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=ENV,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
    )


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, trained by two processes."""
    folder = tmp_path_factory.mktemp("two")
    done = torchrun(ROOT / "tests" / "processes.py", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_what_one_does(name: str, by_two: Path, tmp_path: Path) -> None:
    index = list(CASES).index(name)
    here, there = (read_tensors(by_two / f"{index}-{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(here[k], there[k]) for k in here), (
        "the processes hold different networks"
    )
    rows = json.loads((by_two / f"{index}-0.json").read_text())
    assert rows == json.loads((by_two / f"{index}-1.json").read_text()) or all(
        "seconds" in k for k in _differing(rows, by_two, index)
    )
    if name == "BatchNorm of one's own":
        return  # each process normalises by its own part of a batch, so weights differ
    weights, alone = trained(name, tmp_path)
    for key, value in weights.items():
        assert torch.allclose(here[key].double(), value.double(), rtol=1e-5, atol=1e-8), key
    found, expected = (
        read_tensors(folder / name / "checkpoints" / "00003-0000000.safetensors")
        for folder in (by_two, tmp_path)
    )
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key not in ("loss_sum", "memory/momentum"):  # of a part's loss, and of its norm
            assert torch.allclose(found[key].double(), value.double(), rtol=1e-5, atol=1e-8), (
                f"the checkpoint's {key}"
            )
    for theirs, mine in zip(rows, alone, strict=True):
        assert theirs["grad_evals"] == mine["grad_evals"]
        assert theirs["grad_evals_per_image"] == mine["grad_evals_per_image"]
        assert theirs["steps"] == mine["steps"]
        assert theirs["valid"] == mine["valid"]
        assert theirs["valid_n"] == mine["valid_n"] == 40
        for probed, expected_probe in zip(
            theirs.get("probed", []), mine.get("probed", []), strict=True
        ):
            assert probed == pytest.approx(expected_probe, rel=1e-6)
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=0.05 if "sizes" in name else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMED)
def test_sync_batchnorm_equals_batchnorm_of_the_whole_batch(name: str, by_two: Path) -> None:
    parts = [torch.load(by_two / f"normed-{rank}.pt")[name] for rank in (0, 1)]
    tolerance = NORMED[name][3]
    for step, whole in enumerate(normed(name)):
        for key, expected in whole.items():
            here, there = (part[step][key] for part in parts)
            if key in ("y", "x.grad"):
                here = torch.cat([here, there])
            else:
                assert torch.equal(here, there), key
            error = (here - expected).abs().max() / expected.abs().max()
            assert error < tolerance, f"{key} in step {step}: {error:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("how", AVERAGED)
def test_gradients_are_averaged_in_buckets(how: str, by_two: Path) -> None:
    # each process compared them with the mean; here, that both have the same
    here, there = (torch.load(by_two / f"averaged-{rank}.pt")[how] for rank in (0, 1))
    for index, (a, b) in enumerate(zip(here, there, strict=True)):
        if index in (6, 7) and how != "into fixed tensors":
            assert a is b is None, "nobody used this layer"
        else:
            assert torch.equal(a, b), index
    assert here[4].abs().max() > 0, "rank 0 did not use this layer, rank 1 did"


@pytest.mark.slow
def test_every_process_reads_the_checkpoint(by_two: Path) -> None:
    here, there = (json.loads((by_two / f"hidden-{rank}.json").read_text()) for rank in (0, 1))
    assert "resumed at epoch 2, batch 2" in here, "rank 0 alone reports"
    (line,) = there
    assert here[-1] == line, "all processes fail with the same line"
    assert line.startswith("rank 1 on ")
    assert "hidden/checkpoints/00002-0000003.json" in line
    assert line.endswith("put the run folder on a file system that all machines share")


def _differing(rows: list[dict[str, Any]], folder: Path, index: int) -> set[str]:
    other = json.loads((folder / f"{index}-1.json").read_text())
    return {k for a, b in zip(rows, other, strict=True) for k in a if a[k] != b[k]}


DIGITS = [
    "model.name=tests.processes:mortal",
    "train.device=cpu",
    "train.epochs=3",
    "data.batch_size=100",
    "data.valid=50",
    "schedule.k_max=2",
    "optim.name=sgd",
    "optim.lr=0.02",
    "optim.nesterov=false",
    "optim.weight_decay=5e-4",
    "train.valid_attack=pgd-2",
    "eval.limit=300",
    "eval.batch_size=50",
    "train.tensorboard=false",
    'eval.attacks=["clean", "pgd-2"]',
]


@contextlib.contextmanager
def two(*arguments: str | Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two processes as a launcher that does not watch them starts them. In the end they are
    killed."""
    with (
        socket.socket() as port
    ):  # bound but not listening: it is nobody else's until rank 0 listens
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
        processes = [
            subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env={**ENV, **group, "WORLD_SIZE": "2", "RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank in range(2)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


@pytest.mark.slow
def test_processes_that_differ_are_refused(tmp_path: Path) -> None:
    with two(ROOT / "tests" / "unequal.py", tmp_path) as processes:
        errors = [process.communicate(timeout=900)[1] for process in processes]
    assert all((tmp_path / f"{rank}.json").is_file() for rank in (0, 1)), errors
    lines = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert lines[0] == lines[1], "every process prints the same line"
    for name, (_, expected) in UNEQUAL.items():
        line = lines[0][name]
        assert line == expected or line.startswith(expected), name
        assert "\n" not in (line or "")
    assert sorted(path.name for path in tmp_path.glob("*/")) == ["nothing"]


class Stopped(nn.Module):
    """A network for digits that stops rank 1, as a machine that hangs does, in its third pass.
    Until then rank 0 is patient: a slow machine does not hang."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.passes = dropout_net(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        if self.passes == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.passes == 3:
            assert dist.group.WORLD is not None
            gloo: Any = dist.group.WORLD._get_backend(x.device)
            assert gloo.options._timeout == timedelta(minutes=7)
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
        return self.net(x)


@pytest.mark.slow
def test_a_process_that_stops_answering_is_noticed(tmp_path: Path) -> None:
    options = [*QUICK, "model.name=tests.test_ranks:Stopped", "train.timeout=7"]
    sets = [part for text in options for part in ("--set", text)]
    out = tmp_path / "run"
    with two("-m", "amata", "train", "mnist5k-amata", *sets, "--out", out) as (first, _):
        line = first.communicate(timeout=900)[1].splitlines()[-1]
        assert first.returncode == 1
    assert line.startswith("error: another process stopped answering: no answer in 0.05 minutes")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, never interrupted."""
    folder = tmp_path_factory.mktemp("one") / "run"
    train(recipes.load("mnist5k-amata", DIGITS), folder)
    return folder


def assert_same(run: Path, whole: Path) -> None:
    for name in ("model.safetensors", "last.safetensors"):
        found, expected = read_tensors(run / name), read_tensors(whole / name)
        assert all(torch.allclose(found[k], expected[k], atol=1e-4) for k in expected), name
    a, b = (json.loads((folder / "summary.json").read_text()) for folder in (run, whole))
    assert a["grad_evals"] == b["grad_evals"]
    assert a["best_epoch"] == b["best_epoch"]
    for attack, result in b["evaluation"].items():
        assert a["evaluation"][attack]["n"] == result["n"]
        assert a["evaluation"][attack]["grad_evals"] == result["grad_evals"]
        assert a["evaluation"][attack]["accuracy"] == pytest.approx(result["accuracy"], abs=0.01)
        one, other = (unpack(r["outcomes"], r["n"]) for r in (a["evaluation"][attack], result))
        assert sum(x != y for x, y in zip(one, other, strict=True)) <= 0.02 * result["n"], (
            "in order"
        )


@pytest.mark.slow
def test_a_killed_process_is_restarted_and_the_run_finishes(
    tmp_path: Path, undisturbed: Path
) -> None:
    sets = [part for text in DIGITS for part in ("--set", text)]
    done = torchrun(
        "-m", "amata", "train", "mnist5k-amata", *sets, "--out", tmp_path / "run", restarts=1
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "exitcode: -9" in done.stderr, "no process died"
    assert "resumed at epoch 2\n" in done.stderr
    assert done.stdout.count("run folder") == 1, "one process reports"
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_one_process_resumes_what_two_began(tmp_path: Path, undisturbed: Path) -> None:
    sets = [part for text in DIGITS for part in ("--set", text)]
    done = torchrun("-m", "amata", "train", "mnist5k-amata", *sets, "--out", tmp_path / "run")
    assert done.returncode != 0
    assert not (tmp_path / "run" / "summary.json").exists()
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["method.name=free", "train.accumulate=2"], "cannot come in parts"),
        (["method.name=nuat", "train.accumulate=2"], "couples the images of a batch"),
        (["train.sync_bn=true", "train.attack_mode=train"], "set train.attack_mode=eval"),
    ],
)
def test_what_cannot_be_divided_is_refused(more: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        train(recipes.load("mnist5k-amata", [*DIGITS, *more]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_of_the_whole_batch_is_not_divided_among_processes() -> None:
    recipe = recipes.load("mnist5k-amata", ["method.name=nuat"])
    check_divisible(recipe, Ranks())
    with pytest.raises(InputError, match=r"the loss of nuat couples .*; use one process and"):
        check_divisible(recipe, Ranks(rank=0, size=2))


def test_sync_batchnorm_replaces_modules_and_shares_their_tensors() -> None:
    norm = nn.BatchNorm2d(4, momentum=0.3).eval()
    called: list[nn.Module] = []
    norm.register_forward_hook(lambda module, *_: called.append(module))
    inner = nn.Sequential(norm, nn.BatchNorm2d(4), norm)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, inner)
    before, x = model.state_dict(keep_vars=True), torch.rand(2, 1, 6, 6)
    expected = model(x)
    assert convert_sync_batchnorm(model) is model
    shared = model[1]
    assert isinstance(shared, SyncBatchNorm)
    assert isinstance(shared, nn.BatchNorm2d), "what folds a BatchNorm2d still finds it"
    assert shared is inner[0] is inner[2], "used under three names, replaced by one module"
    assert isinstance(inner[1], SyncBatchNorm)
    assert (shared.training, shared.momentum, inner[1].training) == (False, 0.3, True)
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in before)
    assert torch.equal(model(x), expected)
    assert called[-1] is shared
    assert revert_sync_batchnorm(model) is model
    assert [type(m) for m in (model[1], inner[0], inner[1])] == [nn.BatchNorm2d] * 3
    assert model[1] is inner[0]
    assert all(value is before[key] for key, value in model.state_dict(keep_vars=True).items())


def test_a_model_that_is_a_batchnorm_is_replaced_itself() -> None:
    norm = nn.BatchNorm1d(3)
    synced = convert_sync_batchnorm(norm)
    assert isinstance(synced, SyncBatchNorm)
    assert synced.weight is norm.weight
    assert type(revert_sync_batchnorm(synced)) is nn.BatchNorm1d


def test_with_sync_batchnorm_a_loss_counts_by_its_share_of_all_images() -> None:
    class Two(Ranks):
        def sum(self, values: Sequence[float]) -> list[float]:
            return [values[0] + 6]  # the other process has six images

    gradients = []
    for ranks in (Ranks(), Two(0, 2)):
        model = convert_sync_batchnorm(small_net())
        net = PlainNet(model, torch.optim.SGD(model.parameters(), 0.1), ranks=ranks)
        net.part_weight, net.accumulating = 0.5, True  # nothing is sent before the last part
        torch.manual_seed(0)
        net.backward(images(2), labels(2))
        g = next(model.parameters()).grad
        assert g is not None
        gradients.append(g)
    # averaging over two processes divides by 2; the two images are 2 of 8
    torch.testing.assert_close(gradients[1] / 2, gradients[0] * 2 / 8)
    assert gradients[0].abs().max() > 0


def test_the_current_ranks_follow_the_process_group() -> None:
    assert (current().rank, current().size, current().gloo_group) == (0, 1, None)
    for _ in range(2):  # a second group must not get the ranks of the first
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            assert current().gloo_group is dist.group.WORLD
            assert current() is current()
        finally:
            dist.destroy_process_group()
    assert current().gloo_group is None
