"""Processes that decode many small images into one array.

Pillow holds Python's lock for most of the time that a small image takes, so threads are slower than
a loop. The processes are new interpreters, not forks: a fork of a process whose other threads
compile or use a GPU may deadlock. They import Pillow and numpy, but not torch.
"""

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from amata.cores import cores
from amata.data.framing import Framing
from amata.data.pixels import pixels_of

LEAST = 2000
"""Images from which processes pay: they take a third of a second to start."""
HEAD = struct.Struct("<?Q")
"""Before each image: whether it is the path of a file, and the number of bytes."""
START = """
import json, sys, types
about = json.loads(sys.stdin.buffer.readline())
sys.path[:] = about["path"]
for name, place in about["packages"].items():
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [place]
from amata.data.processes import work
work(about["frame"])
"""
"""Runs `work` without the packages' own imports, which would take seconds."""


def decode_in_processes(
    sources: Sequence[bytes | Path], frame: tuple[int, int] | Framing, out: np.ndarray
) -> list[range]:
    """Fill `out` with the pixels of all images. The ranges that are left, from an image that cannot
    be decoded or where a process died, are for the caller to decode, who then meets its error."""
    count = min(cores(), len(sources) // (LEAST // 2))
    if count < 2 or not sys.executable or getattr(sys, "frozen", False):
        return [range(len(sources))]
    edges = [len(sources) * i // count for i in range(count + 1)]
    parts = [range(edges[i], edges[i + 1]) for i in range(count)]
    about = json.dumps(
        {
            "path": sys.path,
            "packages": {
                "amata": str(Path(__file__).parents[1]),
                "amata.data": str(Path(__file__).parent),
            },
            "frame": asdict(frame) if isinstance(frame, Framing) else frame,
        }
    )
    workers: list[subprocess.Popen[bytes]] = []
    try:
        with ThreadPoolExecutor(2 * count) as pool:
            try:
                for part in parts:
                    worker = _start()
                    if worker is None:
                        break
                    workers.append(worker)
                    assert worker.stdin is not None
                    pool.submit(_feed, worker.stdin, about, [sources[i] for i in part])
                done = list(pool.map(_fill, workers, (out[p.start : p.stop] for p in parts)))
            finally:  # also after Ctrl-C: the threads above wait for these processes
                for worker in workers:
                    worker.kill()
    finally:
        for worker in workers:
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
    done += [0] * (count - len(done))
    return [
        range(part.start + n, part.stop)
        for part, n in zip(parts, done, strict=True)
        if n < len(part)
    ]


def _start() -> subprocess.Popen[bytes] | None:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with suppress(OSError):  # such as too many processes
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **one_thread},
        )
    return None


def _feed(stream: IO[bytes], about: str, sources: Sequence[bytes | Path]) -> None:
    with suppress(OSError), stream:  # the process may have stopped at a bad image
        stream.write(about.encode() + b"\n")
        for source in sources:
            content = source if isinstance(source, bytes) else os.fsencode(source.absolute())
            stream.write(HEAD.pack(isinstance(source, Path), len(content)))
            stream.write(content)


def _fill(worker: "subprocess.Popen[bytes]", out: np.ndarray) -> int:
    """Read pixels until the process ends: the number of whole images."""
    stream: Any = worker.stdout
    view, done = out.data.cast("B"), 0
    while done < len(view) and (count := stream.readinto(view[done:])):
        done += count
    return done // max(1, out[0].nbytes)


def work(frame: Any) -> None:
    """What a process does: pixels of the images on stdin to stdout, up to the first bad one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    given = Framing(**frame) if isinstance(frame, dict) else tuple(frame)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(HEAD.size):
        is_path, size = HEAD.unpack(head)
        content = source.read(size)
        image = Path(os.fsdecode(content)) if is_path else content
        target.write(pixels_of(image, given, "").tobytes())
