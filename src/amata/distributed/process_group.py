"""Data-parallel training: the process group, as torchrun starts it.

Every process holds the whole network and a part of each batch, and attacks that part without
communication. Before every update weight gradients (`buckets.py`) and BatchNorm's running
statistics are averaged over all images. The replicas then stay equal bit for bit, so rank 0 alone
writes checkpoints, and a run may be resumed on another number of processes.

There are two groups. The device's own (NCCL where every process has a GPU) averages gradients.
A gloo group beside it carries what is on the CPU: counts, Python objects, tensors for checkpoints.
NCCL could send those only from GPU memory, and each message would wait for the GPU.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from amata.errors import AmataError

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for another one. Most waits are shorter than a second. The longest are
for a process that compiles, writes the last checkpoint, or has one more batch to evaluate."""

JOIN_TIMEOUT = timedelta(hours=1)
"""How long processes wait for each other at the start: one may read its data faster."""


class Ranks:
    """The rank of this process, the number of processes, and what they send to each other. A
    process on its own is rank 0 of 1 and sends nothing."""

    def __init__(self, rank: int = 0, size: int = 1, gloo_group: Any = None) -> None:
        """`gloo_group` is the process group for CPU tensors and Python objects."""
        self.rank, self.size, self.gloo_group = rank, size, gloo_group

    @property
    def is_main(self) -> bool:
        """True on rank 0, which alone writes files and reports."""
        return self.rank == 0

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replace tensors by their weighted mean over all processes, in one all-reduce."""
        parts = [t.reshape(-1) for t in tensors]
        flat = torch.cat([*parts, parts[0].new_ones(1)]) * weight
        dist.all_reduce(flat)
        flat = flat[:-1] / flat[-1]
        for t, mean in zip(tensors, flat.split([len(p) for p in parts]), strict=True):
            t.copy_(mean.view_as(t))

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.gloo_group)
        return total.tolist()

    def broadcast(self, value: T) -> T:
        """The value of rank 0, on every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.gloo_group)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.gloo_group)
        return found

    def gather_rows(self, t: Tensor) -> Tensor:
        """The rows of all processes, concatenated by rank, on the device of `t`. All have the same
        number of rows."""
        on_cpu = t.device.type == "cpu"
        sent = t.to(torch.uint8) if t.dtype == torch.bool else t
        found = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(found, sent, group=self.gloo_group if on_cpu else None)
        return torch.cat(found).to(t.dtype)

    def join_rows(self, t: Tensor) -> Tensor:
        """The rows of all processes, concatenated by rank, on the CPU."""
        return torch.cat(self.gather(t.cpu()))


_current: tuple[Any, Ranks] | None = None
"""torch's default group and the ranks in it. Global like that group itself, because all processes
must create the gloo group beside it together: once, not at every call of `current`."""


def current(timeout: timedelta = TIMEOUT) -> Ranks:
    """The ranks of torch's default process group, whoever initialised it; rank 0 of 1 without
    one.

    The first call creates the gloo group beside an NCCL group, with this timeout. A gloo group
    keeps the timeout that it was initialised with.
    """
    global _current
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    world = dist.group.WORLD
    if _current is None or _current[0] is not world:
        gloo_group = (
            world
            if dist.get_backend() == "gloo"
            else dist.new_group(backend="gloo", timeout=timeout)
        )
        _current = world, Ranks(dist.get_rank(), dist.get_world_size(), gloo_group)
    return _current[1]


def launched() -> bool:
    """Whether torchrun, or another launcher, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_main() -> bool:
    """True on rank 0, before `init_distributed`."""
    return int(os.environ.get("RANK", "0")) == 0


def local_device() -> torch.device | None:
    """This process's GPU among those of its machine; None without torchrun or GPUs."""
    if not launched() or not torch.cuda.is_available():
        return None
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Turn the backend's error about a process that died, or does not answer, into one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "gloo" not in text and not (dist.is_available() and isinstance(error, dist.DistError)):
            raise
        if waited := re.search(r"waiting (\d+)ms", text):
            minutes = f"{int(waited[1]) / 60_000:.3g}"
            reason = f"no answer in {minutes} minutes; raise train.timeout if it was only slow"
        else:
            reason = re.sub(r"^\[\S+\] ", "", text).split(". ")[0].splitlines()[0]
        raise AmataError(
            f"another process stopped answering: {reason}; restart all of them to resume from the "
            "last checkpoint"
        ) from error


@contextmanager
def init_distributed(device: torch.device, timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Initialise the process group, if torchrun started several processes and none is initialised
    yet. A process that does not answer within `timeout` is an error of all others."""
    global _current
    if not launched() or dist.is_initialized():
        yield current(timeout)
        return
    gpu_is_shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # NCCL needs a GPU for each process; processes that share one use gloo.
    backend = "nccl" if device.type == "cuda" and not gpu_is_shared else "gloo"
    store, rank, size = next(dist.rendezvous("env://", timeout=JOIN_TIMEOUT))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps one store through restarts, which still holds the addresses of processes
        # that died. A prefix per restart hides them. Only on one machine do all processes see the
        # same restart count.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)  # type: ignore[attr-defined]
    _join(store, rank, size)
    # NCCL's own timeout kills the process without a line, so gloo's must come first: after every
    # batch processes meet there too.
    waits = timeout if backend == "gloo" else 2 * timeout
    with report_lost_process():
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=waits)
        try:
            yield current(timeout)
        finally:
            _current = None
            dist.destroy_process_group()


def _join(store: Any, rank: int, size: int) -> None:
    """Wait until all processes are here."""
    store.set(f"joined/{rank}", "")
    others = [f"joined/{other}" for other in range(size)]
    try:
        store.wait(others, JOIN_TIMEOUT)
    except dist.DistStoreError:
        missing = [other for other in range(size) if not store.check([others[other]])]
        raise AmataError(
            f"rank {', '.join(map(str, missing))} of {size} did not start within "
            f"{JOIN_TIMEOUT.seconds // 60} minutes; start all processes together"
        ) from None
