"""Commands in forked children of a process that has imported everything: an import of torch per
command would take most of the time of tests/faults.py and tests/fuzz.py."""

import contextlib
import faulthandler
import importlib
import os
import pkgutil
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a child of a process with threads may hang

Inside = Callable[[], object]
"""What a child does before its command."""


def import_everything() -> None:
    """Import what commands import, without starting a thread."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot
    import torch._dynamo  # optimisers import it

    import amata

    for module in pkgutil.walk_packages(amata.__path__, "amata."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # kernels for GPUs
                if error.name != "triton":
                    raise
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Outcome:
    """How a command ended. A `code` below 0 is the signal that killed it."""

    code: int
    out: str
    err: str
    hung: bool = False

    def __str__(self) -> str:
        how = "was killed, it hung" if self.hung else f"exit status {self.code}"
        if "Traceback" in self.err:
            frames = re.findall(r'src/(amata/.*)", line (\d+)', self.err)
            where = ":".join(frames[-1]) if frames else "elsewhere"
            return f"{how}; traceback at {where}: {self.err.strip().splitlines()[-1]}"
        return f"{how}; stderr: {self.err[-1000:].strip() or 'empty'}"


class Child:
    """A forked process. It runs `call`, as a process group of its own."""

    def __init__(self, call: Callable[[], object], folder: Path, inside: Inside | None) -> None:
        self.streams: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        # A signal waits until the child is what it will be, instead of interrupting its start.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        self.pid = os.fork()
        if self.pid == 0:
            _become(call, folder, inside, self.streams)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def stop(self) -> None:
        """Stop it until SIGCONT, unless it has ended."""
        self.kill(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)

    def ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, seconds: float = 600.0) -> Outcome:
        """Wait for its end. It is killed after some seconds."""
        last = time.monotonic() + seconds
        pause = 0.001
        while not self.ended() and time.monotonic() < last:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        hung = not self.ended()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # with whatever it started
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        out, err = (_content(stream) for stream in self.streams)
        return Outcome(code, out, err, hung)


def command(*arguments: str | Path, folder: Path = Path(), inside: Inside | None = None) -> Child:
    """Start `amata ARGUMENTS` in a folder."""
    from amata.cli import main

    return Child(lambda: main([str(a) for a in arguments]), folder, inside)


def _become(
    call: Callable[[], object], folder: Path, inside: Inside | None, streams: list[IO[bytes]]
) -> None:
    """Turn the forked process into the child. Does not return."""
    code = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream.fileno(), number)
        sys.stdout = open(1, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.enable(sys.stderr)
        os.chdir(folder)
        if inside is not None:
            inside()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        call()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _content(stream: IO[bytes]) -> str:
    stream.seek(0)
    with stream:
        return stream.read().decode(errors="backslashreplace")
