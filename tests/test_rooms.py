"""The shape of the house: which room may know which, and what importing it costs."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "amata"

# Room -> the rooms it may import. A new arrow is a decision: write it here on purpose.
LEAVES = {"errors", "quantity"}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "checksums": {"errors"},
    "imports": {"errors"},
    "quantity": {"errors"},
    "fields": {"errors", "quantity"},
    "formatting": set(),
    "batch": {"seeds"},
    "seeds": set(),
    "threat": LEAVES | {"seeds"},
    "schedules": LEAVES | {"fields"},
    "losses": {"polar"},
    "polar": set(),
    "attacks": {"errors", "fields", "losses", "quantity", "seeds", "threat"},
    "methods": {"batch", "errors", "fields", "losses", "quantity", "schedules", "seeds", "threat"},
    "distributed": {"errors"},
    "metrics": set(),
    "reporter": {"metrics"},
    "loggers": {"errors", "metrics", "reporter"},
    "cores": set(),
    "locks": set(),
    "ahead": {"cores", "errors"},
    "engine": {"ahead", "cores", "distributed", "errors", "losses", "seeds", "threat"},
    "tensors": {"checksums", "errors"},
    "models": {"errors", "imports", "seeds", "tensors"},
    "data": {"batch", "cores", "errors", "locks", "seeds"},
    "evaluation": {
        "attacks",
        "batch",
        "console",
        "data",
        "engine",
        "errors",
        "formatting",
        "losses",
        "quantity",
        "reporter",
        "seeds",
        "threat",
    },
    "recipes": {"errors", "formatting", "imports", "methods", "quantity", "schedules", "threat"},
    "control": {
        "batch",
        "engine",
        "errors",
        "losses",
        "methods",
        "quantity",
        "schedules",
        "seeds",
        "threat",
    },
    "report": {"errors", "formatting", "runs"},
    "training": {
        "ahead",
        "attacks",
        "batch",
        "checksums",
        "console",
        "control",
        "cores",
        "data",
        "distributed",
        "engine",
        "errors",
        "evaluation",
        "formatting",
        "losses",
        "methods",
        "metrics",
        "models",
        "polar",
        "quantity",
        "recipes",
        "reporter",
        "runs",
        "schedules",
        "seeds",
        "tensors",
        "threat",
    },
    "studies": {
        "attacks",
        "batch",
        "console",
        "control",
        "cores",
        "data",
        "engine",
        "errors",
        "evaluation",
        "formatting",
        "losses",
        "methods",
        "metrics",
        "models",
        "quantity",
        "recipes",
        "report",
        "reporter",
        "runs",
        "schedules",
        "seeds",
        "tensors",
        "threat",
        "training",
    },
    "export": {
        "data",
        "errors",
        "formatting",
        "losses",
        "models",
        "recipes",
        "report",
        "runs",
        "training",
    },
    "runs": {"checksums", "data", "errors", "locks", "metrics", "recipes", "tensors"},
    "console": {"errors", "formatting", "metrics", "reporter"},
    "cli": {
        "ahead",
        "console",
        "control",
        "data",
        "distributed",
        "errors",
        "evaluation",
        "export",
        "formatting",
        "imports",
        "loggers",
        "recipes",
        "report",
        "reporter",
        "runs",
        "studies",
        "training",
    },
    "__main__": {"cli"},
}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = (
                    [f"amata.{alias.name}" for alias in node.names]
                    if node.module == "amata"
                    else [node.module or ""]
                )
            rooms = {room_of(name) for name in names if name.split(".")[0] == "amata"} - {
                room,
                "",
                "__version__",
            }
            found.setdefault(room, set()).update(rooms)
    return found


def test_arrows_point_one_way() -> None:
    found = imports()
    del found["__init__"]  # the front door shows every room
    assert set(found) == set(ARROWS), "a room without a row, or a row without a room"
    wrong = {
        room: sorted(known - ARROWS[room]) for room, known in found.items() if known - ARROWS[room]
    }
    assert not wrong


def test_the_arrows_have_no_cycle() -> None:
    left = {room: set(known) for room, known in ARROWS.items()}
    while left:
        free = {room for room, known in left.items() if not known & set(left)}
        assert free, f"a cycle among {sorted(left)}"
        left = {room: known for room, known in left.items() if room not in free}


def test_no_function_shadows_a_module_of_its_name() -> None:
    for init in SOURCE.glob("*/__init__.py"):
        package = importlib.import_module(f"amata.{init.parent.name}")
        for module in init.parent.glob("[a-z]*.py"):
            found = getattr(package, module.stem, None)
            assert found is None or isinstance(found, ModuleType), f"{init.parent}: {module.stem}"


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from amata.cli import main
try:
    main(["--help"])
except SystemExit as e:
    assert e.code == 0
assert "torch" not in sys.modules, "torch was imported"
"""
    assert "train" in run_python(code)


def test_the_front_door_loads_little_beside_torch() -> None:
    """What takes long to import waits until it is called for."""
    code = """
import json, sys
import torch
before = set(sys.modules)
import amata
amata.fit, amata.evaluate, amata.Linear, amata.attacks.pgd
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""
    loaded = set(json.loads(run_python(code)))
    assert {"amata", "pydantic", "safetensors"} <= loaded
    assert not loaded & {
        "matplotlib",
        "onnx",
        "onnxruntime",
        "optuna",
        "pandas",
        "pyautoattack",
        "rich",
        "scipy",
        "tensorboard",
        "typer",
    }


@pytest.mark.parametrize("name", ["fit", "evaluate", "Linear", "Linf", "attacks", "InputError"])
def test_public_names_resolve(name: str) -> None:
    import amata

    assert getattr(amata, name) is not None
    assert name in dir(amata)
