"""The run folder: everything a run leaves behind, and what it needs to go on."""

import contextlib
import filecmp
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from amata import recipes
from amata.data import Splits
from amata.errors import InputError
from amata.recipes import Recipe
from amata.runs.files import link_atomic, unwritable, write_atomic, write_json


class RunFolder:
    """recipe.toml, env.json, split.json, metrics.jsonl, checkpoints/, epochs/, model.safetensors,
    last.safetensors, summary.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """A new run folder; an existing one is never written into."""
        cls.check_free(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output folder {path} cannot be made ({error.strerror}); choose another --out"
            ) from None
        write_atomic(
            path / "recipe.toml",
            f"# {recipe.name}, with every default filled in\n{recipe.to_toml()}".encode(),
        )
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that holds anything."""
        if path.exists() and not (path.is_dir() and _is_stillborn(path)):
            hint = (
                f"`amata train --resume {path}` goes on with it, or"
                if (path / "recipe.toml").is_file()
                else "it holds other files;"
            )
            raise InputError(f"output folder {path} exists already; {hint} choose another --out")

    @classmethod
    def open(cls, path: Path, overrides: tuple[str, ...] = ()) -> tuple["RunFolder", Recipe]:
        """An existing run folder and its recipe; only keys that do not change the experiment may be
        overridden."""
        file = path / "recipe.toml"
        if not file.is_file() or not ((path / "checkpoints").is_dir() or cls(path).finished):
            raise InputError(
                f"{path} is not a run folder: it has no recipe.toml with checkpoints/ or a "
                "summary; give the folder that `amata train` printed"
            )
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key not in recipes.OPERATIONAL:
                allowed = ", ".join(sorted(recipes.OPERATIONAL))
                raise InputError(
                    f"--set {key} would change the experiment being resumed; only {allowed} "
                    "may change"
                )
        text = file.read_text()
        name = (
            text.split("\n", 1)[0].removeprefix("# ").removesuffix(", with every default filled in")
            if text.startswith("#")
            else path.name
        )
        return cls(path), recipes.parse(
            recipes.read_toml(text, str(file)), name or path.name, overrides
        )

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def write_environment(self, device: torch.device) -> None:
        write_json(self.path / "env.json", environment(device))

    def record_split(self, seed: int, splits: Splits) -> None:
        """Write down which samples are held out; a resumed run must find the very same."""
        file, split = self.path / "split.json", {"seed": seed, **splits.record()}
        self._check(split, "put them back to go on")
        # or it was written by an earlier version
        if not file.is_file() or json.loads(file.read_text()).keys() != split.keys():
            write_json(file, split)

    def check_test(self, splits: Splits) -> None:
        """Refuse to test on other images than were kept apart: some of them may have been trained
        on."""
        self._check(
            {"test_hash": splits.hashes["test_hash"]},
            "put them back, or say --set data.root=FOLDER to take them as they are",
        )

    def _check(self, split: dict[str, Any], way_out: str) -> None:
        file = self.path / "split.json"
        # it is not kept with results alone
        known = json.loads(file.read_text()) if file.is_file() else {}
        if any(known.get(key, value) != value for key, value in split.items()):
            raise InputError(
                f"the data are not those that {self.path} was trained on: images came or went "
                f"since; {way_out}"
            )

    def read_rows(self) -> list[dict[str, Any]]:
        file = self.path / "metrics.jsonl"
        return (
            [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        )

    def truncate_rows(self, count: int) -> None:
        """Forget rows of epochs that a resumed run will train again."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
        write_atomic(file, "".join(lines[:count]).encode())

    def append_row(self, row: dict[str, Any]) -> None:
        file = self.path / "metrics.jsonl"
        try:
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        except OSError as error:
            raise unwritable(file, error) from None

    def epoch_file(self, epoch: int) -> Path:
        """The model and the method's memory at the start of an epoch, or of its end: `epoch` epochs
        are done."""
        return self.path / "epochs" / f"{epoch:05d}.safetensors"

    def forget_epochs(self, epoch: int) -> None:
        """Drop the states of epochs after `epoch`, which a resumed run will come to again on
        another way."""
        for path in self.path.glob("epochs/*.safetensors"):
            if int(path.stem) > epoch:
                path.unlink()

    def best_file(self, epoch: int) -> Path:
        return self.checkpoints / f"best-{epoch:05d}.safetensors"

    def promote(self, epoch: int | None) -> None:
        """Make model.safetensors the weights of `epoch`, which the newest checkpoint calls the
        best, and drop earlier candidates."""
        model = self.path / "model.safetensors"
        if epoch is not None and self.best_file(epoch).is_file():
            best = self.best_file(epoch)
            if not model.is_file() or not (
                os.path.samefile(model, best) or filecmp.cmp(model, best, shallow=False)
            ):
                link_atomic(model, best)
        wanted = {self.best_file(e) for e in [epoch, *self._kept_bests()] if e is not None}
        for path in self.checkpoints.glob("best-*.safetensors"):
            if path not in wanted:
                path.unlink()

    def _kept_bests(self) -> list[int | None]:
        """The best epoch by each checkpoint's own account: an older one may have to be gone back
        to."""
        bests = []
        for path in self.checkpoints.glob("[0-9]*.json"):
            with contextlib.suppress(ValueError, KeyError):
                bests.append(json.loads(path.read_text())["best_epoch"])
        return bests


def _is_stillborn(path: Path) -> bool:
    """Whether a folder is empty, or holds no more than a run that was killed before it had its
    recipe."""
    entries = {p.name for p in path.iterdir()}
    return entries <= {"checkpoints", ".recipe.toml.part"} and not any(
        (path / "checkpoints").glob("*")
    )


def environment(device: torch.device) -> dict[str, Any]:
    """What a number depends on beside the recipe."""
    packages = {}
    for package in ("amata", "torch", "numpy", "safetensors", "pydantic", "pyautoattack"):
        with contextlib.suppress(PackageNotFoundError):
            packages[package] = version(package)
    packages["torch"] = torch.__version__
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": packages,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of this package's source, with + if it has been changed; None outside a
    checkout."""
    here = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__],
            cwd=here,
            capture_output=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None if run.returncode == 0 and tracked.returncode == 0 else None
