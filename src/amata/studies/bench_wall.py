"""What the seconds of a whole `amata train` are spent on, from the command to the tested model."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amata.errors import AmataError
from amata.recipes import Recipe
from amata.runs.environment import environment
from amata.training.device import resolve_device

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "AMATA_CACHE")
"""Environment variables: the folders of compiled code and of decoded images."""


def bench_wall(
    names: Sequence[str],
    recipes: Sequence[Recipe],
    overrides: Sequence[str],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Train and evaluate each recipe twice, each time in a new process: with empty caches, then
    with those that the first run filled. `names` are what the command line calls the recipes."""
    rows = []
    for name, recipe in zip(names, recipes, strict=True):
        with TemporaryDirectory(prefix="amata-wall-") as folder:
            for caches in ("cold", "cached"):
                note(f"{recipe.name}, {caches}")
                rows.append(
                    {"recipe": recipe.name, "caches": caches}
                    | _timed(name, overrides, Path(folder), caches)
                )
    device = resolve_device(recipes[0].train.device)
    return {"rows": rows, "overrides": list(overrides), "environment": environment(device)}


def _timed(name: str, overrides: Sequence[str], folder: Path, caches: str) -> dict[str, Any]:
    """One training, timed from outside. `exit_seconds` is what its own clock cannot see: from the
    summary to the end of the process."""
    own = {key: str(folder / key.lower()) for key in CACHES}
    command = [sys.executable, "-P", "-m", "amata", "train", name, "--json"]
    options = [word for text in overrides for word in ("--set", text)]
    options += ["--out", str(folder / caches)]
    started = time.perf_counter()
    done = subprocess.run([*command, *options], env=os.environ | own, stdout=subprocess.PIPE)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise AmataError(f"amata train {name} failed with status {done.returncode}, see above")
    summary = json.loads(done.stdout)
    inside = summary["wall_seconds"]["total"]
    return {
        "command_seconds": round(seconds, 3),
        "wall_seconds": summary["wall_seconds"],
        "exit_seconds": round(seconds - inside, 3),
        "train_seconds": summary["train_seconds"],
        "evaluation": {k: r["accuracy"] for k, r in summary["evaluation"].items()},
    }
