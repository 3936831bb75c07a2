"""The run folder: everything that a run leaves behind, and what a resume needs."""

import contextlib
import filecmp
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from amata import recipes
from amata.checksums import damaged, of_text
from amata.data import Splits
from amata.errors import InputError, printable, quoted
from amata.metrics import EpochRow, Event, Row, is_event
from amata.recipes import Recipe, recorded
from amata.recipes.schema import PythonData
from amata.runs.checkpoint import best_file
from amata.runs.code import different_code
from amata.runs.environment import differences, environment
from amata.runs.files import (
    append_line,
    check_type,
    link_atomic,
    parse_json,
    read_record,
    read_text,
    refuse_links,
    remove,
    remove_partial,
    write_atomic,
    write_record,
)
from amata.runs.lock import LOCK, Busy, hold
from amata.runs.records import (
    CHECKPOINT,
    ENVIRONMENTS,
    EPOCH,
    EVENT,
    PLAN,
    SPLIT,
    SUMMARY,
    Environment,
)

ROWS = 100_000
"""The most rows of metrics.jsonl that are read."""
FILLED = ", with every default filled in"
SEALED = f"{FILLED}; the last line is a checksum"
"""The end of the first line of recipe.toml, which begins with the name of the recipe."""


class RunFolder:
    """recipe.toml, env.json, split.json, metrics.jsonl, checkpoints/, epochs/, evaluations/,
    model.safetensors, last.safetensors, summary.json; plan.json if it was given a time.

    Everything is read through the methods below, which check it: a damaged file is an error of one
    line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.recorded_split: dict[str, Any] = {}
        """What `record_split` was given, also if the folder is then deleted."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """A new run folder; an existing one is never written into."""
        cls.check_free(path)
        text = f"# {printable(recipe.name)}{SEALED}\n{recipe.to_toml()}"
        try:
            content = f"{text}# sha256 {of_text(text)}\n".encode()
        except UnicodeEncodeError:
            raise InputError(
                "the recipe has a path or a text that is not UTF-8; rename the folder or file"
            ) from None
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output folder {path} cannot be created ({error.strerror}); choose another folder"
            ) from None
        with hold(path / "checkpoints", "training"):
            cls.check_free(path)  # another process may have created a run since
            write_atomic(path / "recipe.toml", content)
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
        if not path.exists():
            raise InputError(f"no run folder {path}; pass the folder that `amata train` printed")
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
        text = recipes.read_text(file)
        first, _, _ = text.partition("\n")
        if first.endswith(SEALED) or "\n# sha256 " in text:
            content, _, checksum = text.rpartition("# sha256 ")
            if checksum != f"{of_text(content)}\n":
                raise InputError(
                    f"{file} was changed after the run began (its checksum is wrong); restore it, "
                    "and pass what may change with --set"
                )
        name = path.name
        if first.startswith("# "):
            name = first.removeprefix("# ").removesuffix(SEALED).removesuffix(FILLED) or name
        return cls(path), recipes.parse(recipes.read_toml(text, str(file)), name, overrides)

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def check_finished(self) -> None:
        if not self.finished:
            call = resume_call(self.path, RunFolder.open(self.path)[1])
            raise InputError(f"{self.path} is not finished; first resume it: {call}")

    def summary(self) -> dict[str, Any]:
        """The result of a finished run."""
        hint = "restore it, or delete it and resume the run, which writes it again"
        return read_record(self.path / "summary.json", SUMMARY, hint=hint)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Record the result, which finishes the run."""
        checksum = of_text(read_text(self.metrics))
        write_record(self.path / "summary.json", {**summary, "metrics_sha256": checksum})

    def remove_if_untrained(self) -> None:
        """Remove the folder of a run that failed before its first epoch or checkpoint. The folder
        stays if another process has resumed it."""
        with contextlib.suppress(Busy), hold(self.checkpoints, "training"):
            if not _holds_more_than_a_lock(self.checkpoints) and not self.has_rows():
                shutil.rmtree(self.path)

    def has_rows(self) -> bool:
        """Whether metrics.jsonl holds anything, readable or not."""
        return self.metrics.is_file() and self.metrics.stat().st_size > 0

    def was_started(self) -> bool:
        """Whether training has begun here before."""
        return self.has_rows() or (self.path / "env.json").exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training here. What a run appends to, and its folders, must not
        lead elsewhere."""
        names = ("checkpoints", "epochs", "evaluations", "tensorboard", "metrics.jsonl")
        refuse_links(*(self.path / name for name in names))
        with hold(self.checkpoints, "training"):
            for folder in ("", "checkpoints", "epochs", "evaluations"):
                remove_partial(self.path / folder)
            yield

    def environments(self) -> list[Environment]:
        """The environment of each start of the run, the last one last."""
        file = self.path / "env.json"
        if not file.exists():
            raise InputError(
                f"{self.path} has no env.json, so its device is unknown; copy it from the original "
                "run"
            )
        found = read_record(file, ENVIRONMENTS, hint="restore it, or delete it to lose the history")
        earlier = found.pop("earlier", [])
        return [*earlier, cast(Environment, found)]

    def record_start(self, device: torch.device, code: dict[str, str]) -> list[str]:
        """Add the environment of this start, and the code of the user's classes. Returns how they
        differ from those of the last start, if that may change the result."""
        now = environment(device)
        if code:
            now["code"] = code
        earlier = self.environments() if (self.path / "env.json").exists() else []
        write_record(self.path / "env.json", {**now, "earlier": earlier})
        return differences(earlier[-1], now) if earlier else []

    def edited(self, code: dict[str, str]) -> list[str]:
        """What is to be said of a finished run if the user's code is another now."""
        return [
            f"the code of {name} has changed since {self.path} was trained: its result is of the "
            "old code; choose another name or folder for the new one"
            for name in different_code([self.code(), code])
        ]

    def code(self) -> dict[str, str]:
        """The code of the user's classes when the run was last started, as far as it is known."""
        known = (self.path / "env.json").exists()
        return self.environments()[-1].get("code", {}) if known else {}

    def record_split(self, seed: int, record: dict[str, Any]) -> None:
        """Record what is known of the data, such as the samples that are held out; a resumed run
        must find the same ones."""
        file, split = self.path / "split.json", {"seed": seed, **record}
        self._check(
            split, "restore them to resume", f", or remove {file} to train on them as they are"
        )
        # Written by an earlier version, it may lack keys.
        if self.split().keys() != split.keys():
            write_record(file, split)
        self.recorded_split = split

    def split(self) -> dict[str, Any]:
        """What is known of the images of the run; published results may have none."""
        file = self.path / "split.json"
        return read_record(file, SPLIT) if file.exists() else {}

    def record_plan(self, plan: dict[str, Any]) -> None:
        """Record what a run that was given a time is expected to do."""
        write_record(self.path / "plan.json", plan)

    def plan(self) -> dict[str, Any]:
        """What was expected of the run; nothing if it was given no time."""
        file = self.path / "plan.json"
        return read_record(file, PLAN) if file.exists() else {}

    def check_test(self, splits: Splits) -> None:
        """Refuse other test images than the run set aside: it may have trained on some of them."""
        self._check(
            {key: splits.hashes[key] for key in ("test_hash", "test_pixels")},
            "restore them, or pass --set data.root=FOLDER with test images that it has not seen",
        )

    def _check(self, split: dict[str, Any], hint: str, accept_pixels: str = "") -> None:
        known = self.split()
        changed = [key for key, value in split.items() if known.get(key, value) != value]
        if changed:
            what = f"images were added or removed; {hint}"
            if all(key.endswith("_pixels") for key in changed):
                what = f"the pixels of images changed; {hint}{accept_pixels}"
            raise InputError(f"the data are not those that {self.path} was trained on: {what}")

    def epochs(self) -> list[EpochRow]:
        """The epochs that count, in order."""
        return [row for row in self._rows() if not is_event(row)]  # type: ignore[misc]

    def events(self) -> list[Event]:
        """What the collapse guard did, in order."""
        return [row for row in self._rows() if is_event(row)]

    def _rows(self) -> list[Row]:
        """The rows of metrics.jsonl, in order."""
        if not self.metrics.exists() and not self.finished:
            return []
        text = read_text(self.metrics)
        summary = self.summary() if self.finished else None
        if summary is not None and summary.get("metrics_sha256", of_text(text)) != of_text(text):
            raise damaged(self.metrics, "its checksum is wrong")
        lines = text.split("\n", ROWS)
        if len(lines) > ROWS:
            raise InputError(f"{self.metrics} has {ROWS:,} rows or more, too many to read")
        rest = lines.pop()
        if rest and summary is not None:
            lines.append(rest)  # only its newline is lost; in an unfinished run it may be torn
        rows = [self._row(line, number) for number, line in enumerate(lines, 1)]
        epochs = [row["epoch"] for row in rows if not is_event(row)]
        if summary is not None and epochs != list(range(summary["epochs"])):
            raise damaged(self.metrics, f"it does not have {summary['epochs']} epochs in order")
        return rows

    def _row(self, line: str, number: int) -> Row:
        try:
            row: Any = parse_json(line)
        except ValueError as error:
            raise damaged(self.metrics, f"line {number}: {error}") from None
        kind = EVENT if isinstance(row, dict) and is_event(row) else EPOCH
        check_type(kind, row, self.metrics)
        return cast(Row, row)

    def write_rows(self, rows: list[Row]) -> None:
        """Write the rows that a checkpoint knows; those of epochs that are repeated are dropped."""
        write_atomic(self.metrics, "".join(f"{json.dumps(row)}\n" for row in rows).encode())

    def append_row(self, row: Row) -> None:
        append_line(self.metrics, json.dumps(row))

    def epoch_file(self, epoch: int) -> Path:
        """The model and the method's memory after `epoch` epochs."""
        return self.path / "epochs" / f"{epoch:05d}.safetensors"

    def drop_epochs_after(self, epoch: int) -> None:
        """Drop the states after `epoch` epochs; a resumed run writes its own."""
        for path in self.path.glob("epochs/[0-9]*.safetensors"):
            if path.name > self.epoch_file(epoch).name:
                remove(path)

    def best_file(self, epoch: int) -> Path:
        return best_file(self.checkpoints, epoch)

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
                remove(path)

    def _kept_bests(self) -> list[int | None]:
        """The best epoch by each checkpoint: a rollback may need an older one."""
        bests = []
        for path in self.checkpoints.glob("[0-9]*.json"):
            with contextlib.suppress(InputError):
                bests.append(read_record(path, CHECKPOINT, sealed=True).get("best_epoch"))
        return bests


def resume_call(path: Path, recipe: Recipe) -> str:
    """How to resume a run: a Python call where data and model, or method and schedule, came from
    Python."""
    own = recorded.own_objects(recipe)
    if isinstance(recipe.data, PythonData):
        given = "".join(f", {name}=..." for name in own)
        return f"amata.fit(model, train, valid{given}, resume={str(path)!r})"
    if own:
        command = f"`amata train MODULE:NAME --resume {quoted(path)}`"
        return f"amata.train(recipe, resume={str(path)!r}), or {command}"
    return f"`amata train --resume {quoted(path)}`"


def _is_empty_run(path: Path) -> bool:
    """Whether a folder is empty, or was left by a run that was killed before it had a recipe."""
    parts = {p.name for p in path.glob(".recipe.toml.*.part")}
    entries = {p.name for p in path.iterdir()} - parts
    return entries <= {"checkpoints"} and not _holds_more_than_a_lock(path / "checkpoints")


def _holds_more_than_a_lock(folder: Path) -> bool:
    return any(path.name != LOCK for path in folder.glob("*"))
