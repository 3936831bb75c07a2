"""Compiling in a second process: it fills caches, and changes nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from amata import recipes
from amata.engine import ahead as helper
from amata.engine.passes import update_objective
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
def test_only_the_update_is_compiled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = list[Any]()

    def record(function: Any, backend: Any) -> Any:
        functions.append(function)
        return function

    monkeypatch.setattr("amata.engine.recorded.compiled", record)
    changes = [f"method.name={method}", "data.batch_size=4", "model.name=tinycnn"]
    recipe = recipes.load("mnist5k-amata", changes)
    ahead.compile_update(recipe, torch.device("cpu"), compiled=True)
    assert set(functions) == {update_objective}


def test_a_cpu_or_few_cores_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.load("cifar10-pgd10")
    assert ahead.compile_ahead(recipe, torch.device("cpu")) is None
    monkeypatch.setattr(helper, "cores", lambda: 2)
    assert ahead.compile_ahead(recipe, torch.device("cuda")) is None


@pytest.mark.parametrize(
    ("code", "marked"),
    [
        ("print(input() == 'work', flush=True); input()", True),
        ("raise SystemExit(1)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),
    ],
)
def test_a_process_that_dies_is_not_waited_for(
    code: str, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "child.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = helper.Ahead("child", "work", tmp_path / "of" / "marker")
    helper.start(process)
    helper.wait()
    assert (tmp_path / "of" / "marker").is_file() is marked
    process.process.kill()
    process.thread.join(20)
    assert process.process.returncode is not None
