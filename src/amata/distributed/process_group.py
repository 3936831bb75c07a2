"""The processes that train one network init_distributed, as torchrun starts them.

Every process has the whole network and a part of each batch. Attacks are its own affair. Weight
gradients are averaged over all images, with BatchNorm's running statistics in the same message,
once before every update: afterwards all processes hold the same network, bit for bit, so one of
them can write it down and any number of them can go on from there.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""How long processes wait for each other: one may have the harder images to evaluate."""


class Ranks:
    """This process among its peers. A process on its own is rank 0 of 1, and nothing is sent."""

    def __init__(self, rank: int = 0, size: int = 1, gloo_group: Any = None) -> None:
        """`gloo_group` is the process group for messages from host to host, beside the device's own
        for gradients."""
        self.rank, self.size, self.gloo_group = rank, size, gloo_group

    @property
    def is_main(self) -> bool:
        """Whether this process speaks for all: it alone writes files and reports."""
        return self.rank == 0

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replace tensors by their mean over all processes, each with its weight, in one
        message."""
        parts = [t.reshape(-1) for t in tensors]
        flat = torch.cat([*parts, parts[0].new_ones(1)]) * weight
        dist.all_reduce(flat)
        flat = flat[:-1] / flat[-1]
        for t, mean in zip(tensors, flat.split([len(p) for p in parts]), strict=True):
            t.copy_(mean.view_as(t))

    def sum(self, values: Sequence[float]) -> list[float]:
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.gloo_group)
        return total.tolist()

    def broadcast(self, value: T) -> T:
        """The first process's value, given to all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.gloo_group)
        return box[0]

    def join_rows(self, t: Tensor) -> Tensor:
        """The rows of all processes, in order, on the CPU."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, t.cpu(), group=self.gloo_group)
        return torch.cat(found)


_current = Ranks()


def current() -> Ranks:
    """The processes that this one works with: those of `init_distributed`, or of a process group
    that somebody has opened already."""
    global _current
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    if _current.gloo_group is None:
        gloo_group = (
            dist.group.WORLD
            if dist.get_backend() == "gloo"
            else dist.new_group(backend="gloo", timeout=PATIENCE)
        )
        _current = Ranks(dist.get_rank(), dist.get_world_size(), gloo_group)
    return _current


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_main() -> bool:
    """Whether this process will speak for all, told before they have met."""
    return int(os.environ.get("RANK", "0")) == 0


def local_device() -> torch.device | None:
    """This process's GPU among those of its machine; None without torchrun or GPUs."""
    if not launched() or not torch.cuda.is_available():
        return None
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


@contextmanager
def init_distributed(device: torch.device) -> Iterator[Ranks]:
    """Meet the other processes, where torchrun has started several; alone there is nothing to
    do."""
    global _current
    if not launched() or dist.is_initialized():
        yield current()
        return
    crowded = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # NCCL wants a GPU for each process; several on one talk through the host.
    backend = "nccl" if device.type == "cuda" and not crowded else "gloo"
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps one store through restarts, with the addresses of the dead in it. On one
        # machine all know which start this is.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield current()
    finally:
        _current = Ranks()
        dist.destroy_process_group()
