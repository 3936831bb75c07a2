"""A process that trains runs of a study for `amata.studies.jobs`, one after the other.

It reads tasks from stdin and writes what happens to stdout, as lines of JSON. When stdin closes
while it trains, as after the death of its parent, it saves a checkpoint and ends.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from amata import recipes
from amata.errors import AmataError, InputError, Interrupted
from amata.formatting import short_steps
from amata.metrics import EpochRow
from amata.reporter import Reporter, RunInfo
from amata.studies.runs import train_or_resume


class LineReporter(Reporter):
    """Sends what a person should see to the parent."""

    def __init__(self, lines: TextIO, epochs: bool) -> None:
        self.lines, self.epochs = lines, epochs

    def send(self, **message: Any) -> None:
        print(json.dumps(message), file=self.lines, flush=True)

    def run(self, info: RunInfo) -> None:
        self.send(run=list(info))

    def epoch(self, row: EpochRow) -> None:
        if not self.epochs:
            return
        valid = "".join(f", {name} {a:.1%}" for name, a in row.get("valid", {}).items())
        held_out = f"; held-out{valid[1:]}" if valid else ""
        self.send(
            note=f"epoch {row['epoch'] + 1}, K {short_steps(row['steps'])}, "
            f"loss {row['loss']:.3f}{held_out}"
        )

    def note(self, text: str) -> None:
        self.send(note=text)


def perform(task: dict[str, Any], reporter: Reporter) -> None:
    """Train a run, or trials of a search until the study has enough."""
    recipe = recipes.parse(task["tables"], task["recipe"])
    if "folder" in task:
        train_or_resume(Path(task["folder"]), recipe, reporter)
        return
    from amata.studies.search import Search, SearchSettings

    settings = SearchSettings(**{**task["settings"], "shapes": tuple(task["settings"]["shapes"])})
    Search(recipe, settings, Path(task["study"]), reporter).run()


def main() -> None:
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not a message
    tasks: queue.Queue[dict[str, Any] | None] = queue.Queue()
    busy = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            busy.set()
            tasks.put(json.loads(line))
        tasks.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # outside training: KeyboardInterrupt
    while (task := tasks.get()) is not None:
        reporter = LineReporter(lines, epochs="folder" in task)
        try:
            perform(task, reporter)
            end = {"end": "done"}
        except Interrupted as stopped:
            end = {"end": "interrupted", "text": str(stopped)}
        except KeyboardInterrupt:
            end = {"end": "interrupted", "text": "interrupted before it trained"}
        except InputError as error:
            end = {"end": "refused", "text": str(error)}
        except AmataError as error:
            end = {"end": "failed", "text": str(error)}
        busy.clear()
        reporter.send(**end)
