"""The environment of a run: versions, device and commit, which its numbers depend on."""

import contextlib
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from amata.runs.code import different_code
from amata.runs.records import Environment

PACKAGES = ("amata", "torch", "numpy", "safetensors", "pydantic")


def environment(device: torch.device) -> Environment:
    packages = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[package] = version(package)
    packages["torch"] = torch.__version__
    on_gpu = device.type == "cuda"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": packages,
        "device": torch.cuda.get_device_name(device) if on_gpu else str(device),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def differences(before: Environment, now: Environment) -> list[str]:
    """How two starts of a run differ in what may change its result, in sentences."""
    facts = [
        {
            "device": env["device"],
            "torch": env["packages"].get("torch", "unknown"),
            **({"CPU threads": env["threads"]} if env["device"] == "cpu" else {}),
        }
        for env in (before, now)
    ]
    known = facts[0]
    changed = [f"{k} {v}, before {known[k]}" for k, v in facts[1].items() if known.get(k, v) != v]
    notes = [f"resumed with {'; '.join(changed)}: the last bits of the result may differ"]
    edited = [
        f"the code of {name} has changed since this run was started: its result is of the old and "
        "the new code"
        for name in different_code([before.get("code", {}), now.get("code", {})])
    ]
    return [*(notes if changed else []), *edited]


@cache
def _commit() -> str | None:
    """The commit of this package's source, with + if it was changed; None outside a checkout."""
    here = Path(__file__)
    describe = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    tracked = ["git", "ls-files", "--error-unmatch", str(here)]
    try:
        found, known = (
            subprocess.run(command, cwd=here.parent, capture_output=True, text=True, timeout=10)
            for command in (describe, tracked)
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if found.returncode != 0 or known.returncode != 0:
        return None
    return found.stdout.strip() or None
