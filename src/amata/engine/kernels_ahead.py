"""Kernels of `fused_conv`, compiled by other processes: `python -m amata.engine.kernels_ahead`.

A kernel takes seconds to compile, most of them in Python: threads would hold up torch.compile,
which asks for the kernels while it traces a network.
"""

import hashlib
import json
import os
import sys
import threading
from functools import cache
from pathlib import Path

import torch

from amata.engine.ahead import MIN_CORES, Helper, cores
from amata.engine.compiler import keep_on_disk
from amata.engine.halo_launch import Kernel

PROCESSES = 6

_helpers: list[Helper] = []
_requested: dict[str, Helper] = {}
"""By the names of kernels that nobody has waited for yet."""
_known: set[str] = set()
_lock = threading.Lock()


def prepare() -> None:
    """Start the processes before the first request, if there is no kernel on disk yet: importing
    torch takes them seconds."""
    with _lock:
        if cores() >= MIN_CORES and not _helpers and not _known and not _on_disk():
            _start()


def _start() -> None:
    count = min(PROCESSES, cores() // 2)
    _helpers.extend(Helper("amata.engine.kernels_ahead") for _ in range(count))


def request(kernel: Kernel, device: torch.device) -> None:
    """Have a kernel compiled, once, unless it is on disk or there are few cores."""
    name = kernel.name()
    with _lock:
        if name in _known or cores() < MIN_CORES:
            return
        _known.add(name)
        marker = _marker(name, torch.cuda.get_device_name(device))
        if marker is None or marker.is_file():
            return
        if not _helpers:
            _start()
        helper = _helpers[len(_requested) % len(_helpers)]
        dtypes = [str(d).removeprefix("torch.") if d else None for d in kernel[2:]]
        helper.send(
            json.dumps([name, str(device), str(marker), kernel.kind, kernel.shape, *dtypes])
        )
        _requested[name] = helper


def wait(kernel: Kernel) -> None:
    """Wait until the kernel is on disk, if it was requested. The processes end with the last."""
    if not _requested:
        return
    name = kernel.name()
    if (helper := _requested.get(name)) is None:
        return
    helper.wait(name)
    with _lock:
        _requested.pop(name, None)
        if not _requested:
            while _helpers:
                _helpers.pop().close()


@cache
def _source() -> bytes:
    """What the kernels depend on, besides their constants."""
    import triton

    return triton.__version__.encode() + Path(__file__).with_name("halo.py").read_bytes()


def _folder() -> Path | None:
    keep_on_disk()
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return None if folder is None else Path(folder) / "amata"


def _on_disk() -> bool:
    """Whether any kernel is, or none can be kept there."""
    folder = _folder()
    return folder is None or any(folder.glob("kernel-*"))


def _marker(name: str, device: str) -> Path | None:
    """The file that says that the kernel is on disk; None if nothing is kept there."""
    if (folder := _folder()) is None:
        return None
    key = hashlib.sha256(_source() + f"{device} {name}".encode()).hexdigest()[:32]
    return folder / f"kernel-{key}"


def main() -> None:
    """Compile the kernels that come in, a line each."""
    for line in sys.stdin:
        name, device, marker, kind, shape, *dtypes = json.loads(line)
        kernel = Kernel(kind, tuple(shape), *(d and getattr(torch, d) for d in dtypes))
        with torch.cuda.device(torch.device(device)):
            kernel.compile()
        Path(marker).parent.mkdir(parents=True, exist_ok=True)
        Path(marker).touch()
        print(name, flush=True)


if __name__ == "__main__":
    main()
