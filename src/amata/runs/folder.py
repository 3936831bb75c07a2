"""The run folder: everything that a run leaves behind, and what a resume needs."""

import contextlib
import filecmp
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from amata import recipes
from amata.data import Splits
from amata.errors import InputError, printable, quoted
from amata.metrics import EpochRow, Event, Row, is_event
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.runs.environment import environment
from amata.runs.files import link_atomic, read_json, unwritable, write_atomic, write_json


class RunFolder:
    """recipe.toml, env.json, split.json, metrics.jsonl, checkpoints/, epochs/, model.safetensors,
    last.safetensors, summary.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """A new run folder; an existing one is never written into."""
        cls.check_free(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output folder {path} cannot be created ({error.strerror}); choose another folder"
            ) from None
        text = f"# {printable(recipe.name)}, with every default filled in\n{recipe.to_toml()}"
        write_atomic(path / "recipe.toml", text.encode())
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that holds anything."""
        if not path.exists() or (path.is_dir() and _is_empty_run(path)):
            return
        hint = "it holds other files:"
        with contextlib.suppress(InputError):  # not a run folder
            hint = f"{resume_call(path, RunFolder.open(path)[1])} resumes it, or"
        raise InputError(f"output folder {path} exists already; {hint} choose another folder")

    @classmethod
    def open(cls, path: Path, overrides: tuple[str, ...] = ()) -> tuple["RunFolder", Recipe]:
        """An existing run folder and its recipe. Only keys that do not change the experiment may be
        overridden."""
        file = path / "recipe.toml"
        if not file.is_file() or not ((path / "checkpoints").is_dir() or cls(path).finished):
            raise InputError(
                f"{path} is not a run folder: it has no recipe.toml with checkpoints/ or a "
                "summary; pass the folder that `amata train` printed"
            )
        for override in overrides:
            key = override.partition("=")[0].strip()
            if key not in recipes.OPERATIONAL:
                allowed = ", ".join(sorted(recipes.OPERATIONAL))
                raise InputError(
                    f"--set {key} would change the experiment that is resumed; only {allowed} "
                    "may change"
                )
        text = file.read_text()
        name = path.name
        if text.startswith("#"):
            first = text.split("\n", 1)[0].removeprefix("# ")
            name = first.removesuffix(", with every default filled in") or name
        return cls(path), recipes.parse(recipes.read_toml(text, str(file)), name, overrides)

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def check_finished(self) -> None:
        if not self.finished:
            call = resume_call(self.path, RunFolder.open(self.path)[1])
            raise InputError(f"{self.path} is not finished; first resume it: {call}")

    def remove_if_untrained(self) -> None:
        """Remove the folder of a run that failed before its first epoch or checkpoint."""
        if not any(self.checkpoints.iterdir()) and not self._rows():
            shutil.rmtree(self.path)

    def write_environment(self, device: torch.device) -> None:
        write_json(self.path / "env.json", environment(device))

    def record_split(self, seed: int, splits: Splits) -> None:
        """Record which samples are held out; a resumed run must find the same ones."""
        file, split = self.path / "split.json", {"seed": seed, **splits.record()}
        self._check(split, "restore them to resume")
        # Written by an earlier version, it may lack keys.
        if not file.is_file() or json.loads(file.read_text()).keys() != split.keys():
            write_json(file, split)

    def split(self) -> dict[str, Any]:
        """The record of the run's data; empty for published results, which do not have it."""
        file = self.path / "split.json"
        found = read_json(file) if file.is_file() else {}
        if not isinstance(found, dict):
            raise InputError(f"{file} is damaged; copy it from the original run")
        return found

    def check_test(self, splits: Splits) -> None:
        """Refuse other test images than the run set aside: it may have trained on some of them."""
        self._check(
            {"test_hash": splits.hashes["test_hash"]},
            "restore them, or pass --set data.root=FOLDER to use the data as they are",
        )

    def _check(self, split: dict[str, Any], hint: str) -> None:
        file = self.path / "split.json"
        # Published results do not have it.
        known = json.loads(file.read_text()) if file.is_file() else {}
        if any(known.get(key, value) != value for key, value in split.items()):
            raise InputError(
                f"the data are not those that {self.path} was trained on: images were added or "
                f"removed; {hint}"
            )

    def epochs(self) -> list[EpochRow]:
        """The epochs that count, in order."""
        return [row for row in self._rows() if not is_event(row)]  # type: ignore[misc]

    def events(self) -> list[Event]:
        """What the collapse guard did, in order."""
        return [row for row in self._rows() if is_event(row)]

    def _rows(self) -> list[Row]:
        if not self.metrics.is_file():
            return []
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def truncate_rows(self, count: int) -> None:
        """Drop the rows of epochs that a resumed run will repeat."""
        lines = self.metrics.read_text().splitlines(keepends=True) if self.metrics.is_file() else []
        write_atomic(self.metrics, "".join(lines[:count]).encode())

    def append_row(self, row: Row) -> None:
        try:
            with self.metrics.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        except OSError as error:
            raise unwritable(self.metrics, error) from None

    def epoch_file(self, epoch: int) -> Path:
        """The model and the method's memory after `epoch` epochs."""
        return self.path / "epochs" / f"{epoch:05d}.safetensors"

    def drop_epochs_after(self, epoch: int) -> None:
        """Drop the states after `epoch` epochs; a resumed run writes its own."""
        for path in self.path.glob("epochs/*.safetensors"):
            if int(path.stem) > epoch:
                path.unlink()

    def best_file(self, epoch: int) -> Path:
        return self.checkpoints / f"best-{epoch:05d}.safetensors"

    def promote(self, epoch: int | None) -> None:
        """Make model.safetensors the weights of `epoch`, the best by the newest checkpoint, and
        drop candidates that no checkpoint needs."""
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
        """The best epoch by each checkpoint: a rollback may need an older one."""
        bests = []
        for path in self.checkpoints.glob("[0-9]*.json"):
            with contextlib.suppress(ValueError, KeyError):
                bests.append(json.loads(path.read_text())["best_epoch"])
        return bests


def resume_call(path: Path, recipe: Recipe) -> str:
    """How to resume a run: a Python call where data and model came from Python."""
    if isinstance(recipe.data, PythonData):
        return f"amata.fit(model, train, valid, resume={str(path)!r})"
    return f"`amata train --resume {quoted(path)}`"


def _is_empty_run(path: Path) -> bool:
    """Whether a folder is empty, or was left by a run that was killed before it had a recipe."""
    entries = {p.name for p in path.iterdir()}
    return entries <= {"checkpoints", ".recipe.toml.part"} and not any(
        (path / "checkpoints").glob("*")
    )
