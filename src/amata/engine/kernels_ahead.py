"""Kernels of `fused_conv`, compiled by other processes. A kernel takes seconds to compile, most of
them in Python: threads would hold up torch.compile, which asks for the kernels while it traces a
network."""

import hashlib
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

from amata.ahead import MIN_CORES, Server, server, use_folder
from amata.cores import cores
from amata.engine.halo_launch import Kernel

_requested: dict[str, Server] = {}
"""By the names of kernels that nobody has waited for yet."""
_known: set[str] = set()
_lock = threading.Lock()


def prepare() -> None:
    """Start the server before the first request, if there is no kernel on disk yet: importing torch
    takes it seconds."""
    folder = use_folder()
    if cores() >= MIN_CORES and folder is not None and not any(folder.glob("kernel-*")):
        server()


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
        _requested[name] = server()
        dtypes = [str(d).removeprefix("torch.") if d else None for d in kernel[2:]]
        described = [str(device), kernel.kind, kernel.shape, *dtypes]
        _requested[name].send({"kernel": described, "name": name, "marker": str(marker)})


def wait(kernel: Kernel) -> None:
    """Wait until the kernel is on disk, if it was requested."""
    if _requested and (helper := _requested.pop(name := kernel.name(), None)) is not None:
        helper.wait(name)


def compile_kernel(described: list[Any]) -> None:
    """Compile a kernel that `request` described."""
    device, kind, shape, *dtypes = described
    kernel = Kernel(kind, tuple(shape), *(d and getattr(torch, d) for d in dtypes))
    with torch.cuda.device(torch.device(device)):
        kernel.compile()


@cache
def _source() -> bytes:
    """What the kernels depend on, besides their constants."""
    import triton

    return triton.__version__.encode() + Path(__file__).with_name("halo.py").read_bytes()


def _marker(name: str, device: str) -> Path | None:
    """The file that says that the kernel is on disk; None if nothing is kept there."""
    if (folder := use_folder()) is None:
        return None
    key = hashlib.sha256(_source() + f"{device} {name}".encode()).hexdigest()[:32]
    return folder / f"kernel-{key}"
