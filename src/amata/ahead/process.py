"""The process that compiles ahead, seen from the process that trains."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amata.ahead.folder import MIN_CORES, may_compile, use_folder
from amata.cores import cores
from amata.errors import shorten

TIMEOUT = 90.0
"""Seconds after which this process no longer waits."""
START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_module(sys.argv[2], run_name='__main__')"
)
"""Finds modules where this process does, and not in the current folder."""
FAILED = "failed "
"""Begins the line about a piece that failed: then its name, a colon and the reason."""
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""One of them exists where CUDA can work: the second in Windows' Linux."""


class Server:
    """A process that runs a module. It is sent lines of work, and writes a line for every piece
    that is done. It ends when its input is closed, at the latest with this process."""

    def __init__(self, module: str = "amata.training.compile_server") -> None:
        self.note: Callable[[str], None] = lambda text: None
        """Called with a sentence about each failure."""
        self.has_recipe = False
        """Whether the command line has sent it the recipe."""
        self.done: dict[str, threading.Event] = defaultdict(threading.Event)
        self.ended = False
        self.last_error = "no message"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, json.dumps(sys.path), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                # torch.cuda.is_available() asks the driver's library instead of starting CUDA.
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                "TORCHINDUCTOR_COMPILE_THREADS": str(max(cores() // 2, 2)),
            },
            start_new_session=True,  # Ctrl-C is for this process alone
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        errors = threading.Thread(target=self._read_errors, daemon=True)
        errors.start()
        with suppress(OSError, ValueError), self.process:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self._hear(line.strip())
            errors.join()
        self.ended = True
        for event in list(self.done.values()):
            event.set()
        if (self.process.returncode or 0) > 0:
            self._complain(self.last_error)

    def _hear(self, line: str) -> None:
        if line.startswith(FAILED):
            line, _, reason = line.removeprefix(FAILED).partition(": ")
            self._complain(reason)
        self.done[line].set()

    def _complain(self, reason: str) -> None:
        self.note(f"compiling ahead failed ({shorten(reason, 120)}): it is compiled when needed")

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with suppress(OSError, ValueError):
            for line in self.process.stderr:
                self.last_error = line.strip() or self.last_error

    def send(self, work: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            self.process.stdin.write(json.dumps(work) + "\n")
            self.process.stdin.flush()

    def wait(self, piece: str) -> None:
        """Return when this piece is done, when the process has ended, or after TIMEOUT seconds."""
        event = self.done[piece]
        if not self.ended and not event.wait(TIMEOUT):
            self.process.kill()


_servers: list[Server] = []
_expected: dict[str, tuple[Server, str]] = {}


def server() -> Server:
    """The process, started if there is none."""
    if _servers and _servers[0].ended:
        _servers.clear()
    if not _servers:
        _servers.append(Server())
    return _servers[0]


def expect(what: str, server: Server, piece: str) -> None:
    """Have the engine wait for this piece before it compiles the same."""
    _expected[what] = server, piece


def wait(what: str) -> None:
    """Wait for a piece that is expected, if there is one."""
    if what in _expected:
        server, piece = _expected.pop(what)
        server.wait(piece)


def start_early(
    recipe: str, overrides: Sequence[str], within: str | None = None, epochs: int | None = None
) -> None:
    """Start the process for a recipe and a time as the command line names them, before torch is
    imported: if there may be a GPU, and the same command has not compiled its code already."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several or cores() < MIN_CORES or not any(map(os.path.exists, GPU_FILES)):
        return
    folder = use_folder()
    if folder is None or not may_compile():
        return
    with suppress(OSError, ValueError):  # a name that cannot be a file's, or no memory
        content = Path(recipe).read_bytes() if Path(recipe).is_file() else b""
        of = [recipe, *overrides, within, epochs, version("torch"), platform.node()]
        key = hashlib.sha256(repr(of).encode() + content).hexdigest()[:32]
        marker = folder / f"{key}-command"
        if marker.is_file():
            return
        named = {"recipe": recipe, "overrides": list(overrides), "epochs": epochs}
        server().send({**named, "within": within, "marker": str(marker)})
        server().has_recipe = True
