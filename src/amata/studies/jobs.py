"""Several runs of a study at the same time, each in its own process: one for each GPU, or each with
its share of the CPU's threads."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amata.errors import AmataError, InputError, Interrupted
from amata.recipes import Recipe
from amata.recipes.recorded import refuse_own
from amata.reporter import Reporter, RunInfo
from amata.training.device import resolve_device
from amata.training.interrupt import Interrupt

WORKER = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from amata.studies.worker import main
main()"""
"""A worker finds the modules that its parent finds: also those that a recipe names."""


def check_jobs(jobs: int, planned: Sequence[Recipe]) -> list[dict[str, str]]:
    """The environment variables of each of `jobs` processes. More than one for a GPU are refused:
    they would slow each other, and may not fit."""
    for recipe in planned:
        refuse_own(recipe, "cannot be rebuilt in the other processes of --jobs; drop it")
    types = {resolve_device(recipe.train.device).type for recipe in planned}
    threads = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // jobs))}
    if "cuda" not in types:
        return [threads] * jobs
    if named := next((r.train.device for r in planned if ":" in r.train.device), None):
        raise InputError(f"--jobs gives each run its own GPU, and train.device = {named} names one")
    count = torch.cuda.device_count()
    if jobs > count:
        raise InputError(f"--jobs {jobs} needs {jobs} GPUs, and {count} are visible; lower it")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    gpus = visible.split(",") if visible else [str(index) for index in range(count)]
    return [threads | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:jobs]]


class _Worker:
    """A process, and the task that it works on."""

    def __init__(self, variables: dict[str, str], messages: "Messages") -> None:
        self.variables = variables
        self.task: int | None = None
        # Ctrl-C goes to all processes of a session. The parent alone decides when workers stop: a
        # second signal would end them before they have saved.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, args=(messages,), daemon=True)
        self.reader.start()

    def _read(self, messages: "Messages") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))

    def start(self, index: int, task: dict[str, Any]) -> None:
        self.task = index
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: its reader says so
            print(json.dumps(task), file=self.process.stdin, flush=True)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10 if self.task is None else 0)
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


Messages = queue.Queue[tuple[_Worker, dict[str, Any] | None]]


class Jobs:
    """Tasks for workers, one for each element of `variables`. A failed task does not stop the
    others; a refused one and an interrupt stop all."""

    def __init__(
        self,
        tasks: Sequence[dict[str, Any]],
        names: Sequence[str],
        variables: Sequence[dict[str, str]],
        reporter: Reporter,
    ) -> None:
        self.tasks, self.names, self.reporter = tasks, names, reporter
        self.waiting = list(range(len(tasks)))
        self.messages: Messages = queue.Queue()
        self.variables = list(variables[: len(tasks)])
        self.workers: list[_Worker] = []
        self.done: set[int] = set()
        self.failures: dict[int, str] = {}
        self.interrupted: list[str] = []
        self.refused: InputError | None = None
        self.number: int | None = None
        """The signal that stopped all."""

    def started(self, index: int) -> None:
        """Called when a worker begins a task."""

    def run(self) -> dict[int, str]:
        """Returns the errors of failed tasks, by index."""
        try:
            with Interrupt() as interrupt:
                self.workers = [_Worker(own, self.messages) for own in self.variables]
                for worker in self.workers:
                    self._give(worker)
                while any(worker.task is not None for worker in self.workers):
                    with contextlib.suppress(queue.Empty):
                        self._receive(*self.messages.get(timeout=0.2))
                    if interrupt.number is not None:
                        self._stop(interrupt.number)
                if self.refused is not None:
                    raise self.refused
                if self.number is not None:
                    where = " and ".join(self.interrupted)
                    text = f"interrupted in {where}" if where else "interrupted"
                    text += "; progress is saved, repeat the command to resume"
                    raise Interrupted(text, self.number)
        finally:
            for worker in self.workers:
                worker.end()
        return self.failures

    def _give(self, worker: _Worker) -> None:
        worker.task = None
        if self.waiting:
            index = self.waiting.pop(0)
            self.started(index)
            worker.start(index, self.tasks[index])

    def _stop(self, number: int) -> None:
        """Ask all workers to save and stop, once."""
        if self.number is not None:
            return
        self.number, self.waiting = number, []
        for worker in self.workers:
            if worker.task is not None:
                worker.process.send_signal(signal.SIGTERM)

    def _receive(self, worker: _Worker, message: dict[str, Any] | None) -> None:
        index = worker.task
        if index is None:
            return
        if message is None:  # it died
            code = worker.process.wait()
            message = {"end": "failed", "text": f"its process died with status {code}"}
            if self.number is not None:
                message["end"] = "interrupted"
            worker.end()
            self.workers.remove(worker)
            if self.waiting:
                worker = _Worker(worker.variables, self.messages)
                self.workers.append(worker)
        if "note" in message:
            self.reporter.note(f"{self.names[index]}: {message['note']}")
        elif "run" in message:
            self.reporter.run(RunInfo(*message["run"]))
        else:
            self._ended(index, message["end"], message.get("text", ""))
            self._give(worker)

    def _ended(self, index: int, how: str, text: str) -> None:
        self.done.add(index)
        if how == "failed":
            self.failures[index] = text
            self.reporter.note(f"{self.names[index]} failed: {text}")
        elif how == "refused":
            self.refused = self.refused or InputError(text)
            self._stop(signal.SIGTERM)
        elif how == "interrupted":
            self.interrupted.append(self.names[index])
            self._stop(signal.SIGTERM)


class _Runs(Jobs):
    """Runs of a comparison, with the part of its cost that is done."""

    infos: Sequence[RunInfo]

    def started(self, index: int) -> None:
        done = 1 - sum(info.share for i, info in enumerate(self.infos) if i not in self.done)
        self.reporter.run(self.infos[index]._replace(done=done))


def train_runs(
    planned: Sequence[tuple[Path, Recipe, RunInfo]],
    variables: Sequence[dict[str, str]],
    reporter: Reporter,
) -> list[str]:
    """Train or resume each recipe in its folder. Returns a message for each failed one."""
    tasks = [
        {"folder": str(folder), "tables": recipe.tables, "recipe": recipe.name}
        for folder, recipe, _ in planned
    ]
    runs = _Runs(tasks, [folder.name for folder, _, _ in planned], variables, reporter)
    runs.infos = [info for _, _, info in planned]
    return [f"{runs.names[i]} failed: {text}" for i, text in sorted(runs.run().items())]


def share_search(
    recipe: Recipe,
    settings: dict[str, Any],
    out: Path,
    variables: Sequence[dict[str, str]],
    reporter: Reporter,
) -> None:
    """Let all processes run trials of the study in `out`, until it has enough."""
    task = {
        "study": str(out),
        "tables": recipe.tables,
        "recipe": recipe.name,
        "settings": settings,
    }
    names = [f"job {index + 1}" for index in range(len(variables))]
    failures = Jobs([task] * len(variables), names, variables, reporter).run()
    if len(failures) == len(variables):
        raise AmataError(f"every job failed: {failures[0]}")
