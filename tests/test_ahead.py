"""Compiling in other processes: they fill caches, and change nothing else."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from amata import recipes
from amata.ahead import folder, process
from amata.engine import FastNet, kernels_ahead
from amata.engine.attack_copy import copy_and_fold
from amata.engine.halo_launch import Kernel
from amata.engine.passes import update_objective
from amata.models import build
from amata.training import ahead
from amata.training.compile_server import Forks, Piece


@pytest.mark.parametrize(
    ("change", "suits"),
    [
        ("train.seed=3", True),
        ("method.name=trades", True),
        ("train.engine=plain", False),
        ("train.compile=never", False),
        ("model.name=mine.py:Net", False),
        ("model.weights=weights.safetensors", False),
        ("optim.class_weights=balanced", False),
    ],
)
def test_only_what_is_built_in_is_compiled_ahead(change: str, suits: bool) -> None:
    assert ahead.suits(recipes.load("cifar10-pgd10", [change])) is suits


def test_the_second_process_reads_the_same_recipe() -> None:
    for name in ("cifar10-amata-quick", "cifar10-trades", "mnist-yopo-5-10"):
        recipe = recipes.load(name)
        tables = json.loads(json.dumps(recipe.tables))
        assert recipes.parse(tables, "ahead").tables == recipe.tables


def test_short_runs_are_not_compiled_ahead() -> None:
    assert ahead.pays(recipes.load("cifar10-amata-quick"))
    assert not ahead.pays(recipes.load("cifar10-amata-quick", ["train.epochs=2"]))
    assert ahead.pays(recipes.load("mnist5k-amata", ["train.compile=always"]))


def test_what_is_compiled_ahead_has_one_name_for_every_seed_and_length() -> None:
    def piece(*changes: str, name: str = "update") -> str:
        return ahead._piece(recipes.load("cifar10-pgd10", list(changes)), name)

    assert piece() == piece("train.seed=5", "train.epochs=3", "optim.lr=0.3", "eval.precision=fp32")
    others = ("data.batch_size=64", "method.name=trades", "model.name=wrn-34-10")
    assert len({piece(), *map(piece, others)}) == 4
    of = partial(piece, name="evaluation")
    assert of() not in (of("eval.precision=fp32"), of('eval.attacks=["autoattack"]'))


@pytest.mark.parametrize("method", ["pgd", "trades", "mart", "nuat", "free", "fast", "fat"])
def test_only_its_own_piece_is_compiled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = list[Any]()

    def record(function: Any, backend: Any) -> Any:
        functions.append(function)
        return function

    monkeypatch.setattr("amata.engine.recorded.compiled", record)
    changes = [f"method.name={method}", "data.batch_size=4", "model.name=tinycnn"]
    recipe = recipes.load("mnist5k-amata", changes)
    ahead.compile_update(recipe, torch.device("cpu"), compiled=True)
    assert set(functions) == {update_objective}
    functions.clear()
    ahead.compile_refresh(recipe, torch.device("cpu"), compiled=True)
    assert set(functions) == {copy_and_fold}


@pytest.mark.parametrize(
    ("device", "count", "gpu_files", "starts"),
    [
        ("cuda", 8, (__file__,), [True, True]),
        ("cuda", 2, (__file__,), [False, False]),
        ("cpu", 8, (), [False, False]),
    ],
)
def test_a_cpu_or_few_cores_start_no_process(
    device: str,
    count: int,
    gpu_files: tuple[str, ...],
    starts: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Process:
        has_recipe = False

        def send(self, work: dict[str, Any]) -> None:
            started.append(work)

    started = list[dict[str, Any]]()
    monkeypatch.setattr(folder, "_CHOSEN_FOLDER", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(process, "GPU_FILES", gpu_files)
    monkeypatch.setattr(process, "_expected", {})
    monkeypatch.setattr(ahead, "_asked", set())
    monkeypatch.setattr(ahead, "_has_room", lambda device: True)
    for module in (ahead, process):
        monkeypatch.setattr(module, "server", Process)
        monkeypatch.setattr(module, "cores", lambda: count)
        monkeypatch.setattr(module, "may_compile", lambda: True)
    ahead.compile_ahead(recipes.load("cifar10-pgd10"), torch.device(device))
    found = [bool(started)]
    assert set(process._expected) == ({"update", "refresh"} if found[0] else set())
    started.clear()
    process._expected.clear()
    # What a process has asked for it does not wait for again, also if only the evaluation is new.
    ahead.compile_ahead(recipes.load("cifar10-pgd10"), torch.device(device))
    assert not started
    other = recipes.load("cifar10-pgd10", ["eval.precision=fp32"])
    ahead.compile_ahead(other, torch.device(device))
    assert bool(started) is found[0]
    assert not process._expected
    started.clear()
    process.start_early("cifar10-pgd10", [])
    assert [*found, bool(started)] == starts


@pytest.mark.parametrize(
    ("code", "noted"),
    [
        ("print(input()[1:-1].split(': ')[1][1:-1], flush=True); input()", ""),
        ("print('failed update: ValueError: no such device', flush=True)", "no such device"),
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ""),
    ],
)
def test_a_process_that_dies_is_not_waited_for(
    code: str, noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(process, "TIMEOUT", 600.0)
    notes = list[str]()
    child = process.Server("child")
    child.note = notes.append
    child.send({"piece": "update"})
    process.expect("update", child, "update")
    process.wait("update")
    assert child.done["update"].is_set() or child.ended
    process.wait("update")  # nobody is expected any more
    child.process.kill()
    child.thread.join(600)
    assert child.process.returncode is not None
    assert noted in "".join(notes)
    assert bool(notes) is bool(noted)


def test_pieces_have_processes_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"

    def work(name: str, seconds: float = 0.0) -> bool:
        if name == "bad":
            raise ValueError("not this one")
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        with log.open("a") as file:
            file.write(f"{name} {os.getpid()}\n")
        return name != "b"  # nothing to compile here

    names = ["first", "bad", "killed", "a", "b", "last"]
    forks = Forks(most_kernels=1)
    for name in names:
        after = frozenset(names[:-1]) if name == "last" else frozenset[str]()
        run = partial(work, name, 0.2 if name == "first" else 0.0)
        forks.waiting.append(Piece(name, run, tmp_path / name, name in "ab", after))
    while forks.waiting or forks.running:
        forks.begin()
        assert sum(p.kernel for p in forks.running.values()) <= 1
        forks.reap()
        time.sleep(0.01)
    said = set(capfd.readouterr().out.splitlines())
    assert said == {
        "first", "a", "b", "last", "failed bad: ValueError: not this one",
        "failed killed: killed by signal 9",
    }  # fmt: skip
    rows = [line.split() for line in log.read_text().splitlines()]
    assert rows[-1][0] == "last"
    assert len({pid for _, pid in rows} | {str(os.getpid())}) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"log", "first", "a", "last"}


def test_a_short_run_has_only_its_evaluation_compiled() -> None:
    def names(*overrides: str) -> list[str]:
        job = {"recipe": "cifar10-amata-quick", "overrides": [*overrides], "marker": "done"}
        return [name.rpartition("-")[2] for name, *_ in ahead.pieces(job)]

    assert names() == names("train.epochs=2") == ["update", "refresh", "evaluation", "command"]
    short = {"recipe": "cifar10-amata-quick", "overrides": ["train.epochs=2"]}
    update, refresh, evaluation = (work for _, work, *_ in ahead.pieces(short))
    assert update() is refresh() is False  # nobody waits for them in vain
    assert isinstance(evaluation, partial)
    for within, compiled in (("30s", False), ("5m", True)):  # whatever the epochs
        update = next(work for _, work, *_ in ahead.pieces({**short, "within": within}))
        assert isinstance(update, partial) is compiled
    assert list(ahead.pieces({**short, "within": "soon"})) == []
    assert names("train.device=cpu") == names("train.engine=plain") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would compile")
def test_the_server_reads_a_command_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(process, "TIMEOUT", 600.0)
    notes, server = list[str](), process.Server()
    server.note = notes.append
    recipe = recipes.load("cifar10-pgd10", ["data.batch_size=64"])
    server.send({"recipe": "cifar10-pgd10", "overrides": ["data.batch_size=6x"]})  # ignored
    server.send({"recipe": "cifar10-pgd10", "overrides": ["data.batch_size=64"]})
    for name in ahead.COMPILE:
        server.wait(ahead._piece(recipe, name))
    assert server.process.poll() is None
    assert notes == []
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.thread.join(600)
    assert server.process.returncode == 0
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith("-update")]


def test_kernels_are_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self) -> None:
            self.sent = list[str]()
            self.waited = list[str]()

        def send(self, work: dict[str, Any]) -> None:
            self.sent.append(work["name"])

        def wait(self, piece: str) -> None:
            self.waited.append(piece)

    server = Process()
    monkeypatch.setattr(kernels_ahead, "server", lambda: server)
    monkeypatch.setattr(kernels_ahead, "cores", lambda: 8)
    monkeypatch.setattr(kernels_ahead, "_source", lambda: b"")
    monkeypatch.setattr(kernels_ahead, "_known", set())
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "GPU")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(folder, "_CHOSEN_FOLDER", str(tmp_path))
    first, other, third = (
        Kernel(kind, (n, 64, 32, 32), torch.uint8, None, torch.float32)
        for kind, n in ((1, 128), (1, 64), (4, 128))
    )
    on_disk = kernels_ahead._marker(third.name(), "GPU")
    assert on_disk is not None
    on_disk.parent.mkdir(parents=True)
    on_disk.touch()
    for kernel in (first, other, first, third):  # the number of images is no part of a kernel
        kernels_ahead.request(kernel, torch.device("cuda", 0))
    assert server.sent == [first.name()]
    for kernel in (third, other, first):
        kernels_ahead.wait(kernel)
    assert server.waited == [first.name()]


def test_the_order_of_compiling_does_not_change_what_dynamo_knows_of_a_tensor() -> None:
    model = build("preactresnet18", in_channels=3, classes=10, seed=0)
    net = FastNet(model, torch.optim.SGD(model.parameters(), lr=0.1), compiled=True)
    net._refresher()
    attack_copy = net.attack_copy
    tensors = [t for pair in attack_copy.copied for t in pair]
    for weight, bias, conv, norm in attack_copy.folded:
        tensors += [weight, bias, conv.weight, *norm.parameters(), *norm.buffers()]
    for chain in attack_copy.chains:
        tensors += [*chain.scales, *chain.shifts]
    assert tensors
    assert all(hasattr(t, "_dynamo_static_input_type") or t._is_view() for t in tensors)
