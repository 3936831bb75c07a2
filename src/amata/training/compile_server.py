"""Compiles what its input asks for: `python -m amata.training.compile_server`.

A line of input is a JSON object. A line of output is the name of a piece that is done, or `failed
NAME: why`. Every piece has a process of its own, forked from this one, which imports what all of
them need but does not use the GPU: CUDA does not survive a fork.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amata.ahead import FAILED
from amata.cores import cores
from amata.engine.kernels_ahead import compile_kernel
from amata.training.ahead import pieces

KERNELS = 6
"""How many kernels are compiled at a time, at most."""
IDLE_SECONDS = 30
"""After so long without work it ends."""


@dataclass
class Piece:
    name: str
    work: Callable[[], bool | None]
    """Returns False if there is nothing to compile here."""
    marker: Path
    """Is created when it is compiled."""
    kernel: bool = False
    after: frozenset[str] = frozenset()
    """It begins when these have ended."""


class Forks:
    """Pieces that wait, and processes that work on them."""

    def __init__(self, most_kernels: int) -> None:
        self.most_kernels = most_kernels
        self.waiting: list[Piece] = []
        self.running: dict[int, Piece] = {}

    def begin(self) -> None:
        """Fork for every piece that may begin."""
        for piece in list(self.waiting):
            unfinished = {p.name for p in (*self.running.values(), *self.waiting)}
            kernels = sum(p.kernel for p in self.running.values())
            if piece.after & unfinished or (piece.kernel and kernels >= self.most_kernels):
                continue
            self.waiting.remove(piece)
            pid = os.fork()
            if pid == 0:
                _work(piece)
            self.running[pid] = piece

    def reap(self) -> None:
        """Forget the processes that have ended; say so for one that was killed."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                piece = self.running.pop(pid)
                if os.WIFSIGNALED(status):
                    say(f"{FAILED}{piece.name}: killed by signal {os.WTERMSIG(status)}")

    def kill(self) -> None:
        for pid in self.running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def say(line: str) -> None:
    os.write(1, (" ".join(line.split()) + "\n").encode())


def _work(piece: Piece) -> None:
    """The life of a forked process."""
    try:
        if piece.work() is not False:
            piece.marker.parent.mkdir(parents=True, exist_ok=True)
            piece.marker.touch()
        say(piece.name)
    except BaseException as error:
        traceback.print_exc()
        say(f"{FAILED}{piece.name}: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def pieces_of(job: dict[str, Any]) -> list[Piece]:
    """The pieces of a line of input, without those that are on disk."""
    if "kernel" in job:
        kernel = job["kernel"]
        return [Piece(job["name"], lambda: compile_kernel(kernel), Path(job["marker"]), True)]
    return [
        Piece(name, work, marker, after=frozenset(after))
        for name, work, marker, after in pieces(job)
    ]


def main() -> None:
    import torch._inductor.compile_fx  # noqa: F401  (for the forks)

    forks, text, last = Forks(min(KERNELS, max(cores() // 2, 1))), b"", time.monotonic()
    while forks.waiting or forks.running or time.monotonic() - last < IDLE_SECONDS:
        busy = forks.waiting or forks.running
        if select.select([0], [], [], 0.05 if busy else 1.0)[0]:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, text = (text + read).split(b"\n")
            for line in lines:
                for piece in pieces_of(json.loads(line)):
                    if piece.marker.is_file():
                        say(piece.name)
                    else:
                        forks.waiting.append(piece)
        forks.reap()
        forks.begin()
        if busy:
            last = time.monotonic()
    forks.kill()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
