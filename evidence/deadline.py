"""Runs that are longer than a command may be: interrupted in time, and kept to be continued."""

import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interrupting(deadline: float) -> Iterator[None]:
    """At the deadline, a time of `time.monotonic`, interrupt this process as Ctrl-C does: training
    saves a checkpoint and stops."""
    if math.isinf(deadline):
        yield
        return
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # behind an & of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timers = [_interrupt_in(max(deadline - time.monotonic(), 0))]
    ignored = sys.unraisablehook

    def again(error: "sys.UnraisableHookArgs") -> None:
        """Python ignores an interrupt in a callback of a weak reference, such as torch's."""
        if issubclass(error.exc_type, KeyboardInterrupt):
            timers.append(_interrupt_in(0.1))
        else:
            ignored(error)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = ignored
        for timer in timers:
            timer.cancel()


def _interrupt_in(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def working_folder(kept: Path | None) -> Iterator[Path]:
    """The folder in which runs train: a temporary one if none is to be kept."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
