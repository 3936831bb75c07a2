"""Compiling in a second process: it fills caches, and changes nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from amata import recipes
from amata.engine import FastNet, kernels_ahead
from amata.engine import ahead as helper
from amata.engine.attack_copy import copy_and_fold
from amata.engine.halo_launch import Kernel
from amata.engine.passes import update_objective
from amata.models import build
from amata.training import ahead


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


def test_short_runs_are_not_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amata.engine.worth.has_compiler", lambda: True)
    assert ahead.pays(recipes.load("cifar10-amata-quick"))
    assert not ahead.pays(recipes.load("cifar10-amata-quick", ["train.epochs=2"]))
    assert ahead.pays(recipes.load("mnist5k-amata", ["train.compile=always"]))


def test_what_is_compiled_ahead_has_one_name_for_every_seed_and_length() -> None:
    def key(*changes: str) -> str:
        return ahead._key(recipes.load("cifar10-pgd10", list(changes)), "GPU")

    assert key() == key("train.seed=5", "train.epochs=3", "optim.lr=0.3")
    others = (
        "data.batch_size=64",
        "method.name=trades",
        "model.name=wrn-34-10",
        "eval.precision=fp32",
    )
    assert len({key(), *map(key, others)}) == 5


@pytest.mark.parametrize("method", ["pgd", "trades", "free", "fast", "fat"])
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


def test_a_cpu_or_few_cores_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.load("cifar10-pgd10")
    assert ahead.compile_ahead(recipe, torch.device("cpu")) == []
    monkeypatch.setattr(helper, "cores", lambda: 2)
    assert ahead.compile_ahead(recipe, torch.device("cuda")) == []


@pytest.mark.parametrize(
    ("code", "noted"),
    [
        ("print(input(), flush=True); input()", ""),
        ("raise ValueError('no such device')", "ValueError: no such device"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ""),
    ],
)
def test_a_process_that_dies_is_not_waited_for(
    code: str, noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    notes = list[str]()
    process = helper.Helper("child", note=notes.append)
    process.send("update")
    helper.expect("update", process)
    helper.wait("update")
    assert process.done["update"].is_set() or process.ended
    helper.wait("update")  # nobody is expected any more
    process.process.kill()
    process.thread.join(20)
    assert process.process.returncode is not None
    assert noted in "".join(notes)
    assert bool(notes) is bool(noted)


def test_kernels_are_requested_once_and_the_processes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        def __init__(self, module: str) -> None:
            self.pieces = list[str]()
            self.waited = list[str]()
            self.closed = False
            started.append(self)

        def send(self, line: str) -> None:
            self.pieces.append(json.loads(line)[0])

        def wait(self, piece: str) -> None:
            self.waited.append(piece)

        def close(self) -> None:
            self.closed = True

    started = list[Process]()
    monkeypatch.setattr(kernels_ahead, "Helper", Process)
    monkeypatch.setattr(kernels_ahead, "cores", lambda: 8)
    monkeypatch.setattr(kernels_ahead, "_source", lambda: b"")
    monkeypatch.setattr(kernels_ahead, "_known", set())
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "GPU")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("amata.engine.compiler._CHOSEN_FOLDER", str(tmp_path))
    first, other, third = (
        Kernel(kind, (n, 64, 32, 32), torch.uint8, None, torch.float32)
        for kind, n in ((1, 128), (1, 64), (4, 128))
    )
    on_disk = kernels_ahead._marker(third.name(), "GPU")
    assert on_disk is not None
    for kernel in (first, other, first):  # the number of images is an argument of the kernel
        kernels_ahead.request(kernel, torch.device("cuda", 0))
    assert [p.pieces for p in started] == [[first.name()], [], [], []]
    on_disk.parent.mkdir(parents=True)
    on_disk.touch()
    kernels_ahead.request(third, torch.device("cuda", 0))
    kernels_ahead.wait(third)
    assert not any(p.closed for p in started)
    kernels_ahead.wait(other)
    assert started[0].waited == [first.name()]
    assert all(p.closed for p in started)
    assert sum(len(p.pieces) for p in started) == 1


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
