"""Worker processes that decode images."""

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amata.cores import cores, local_processes
from amata.errors import AmataError


def ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the workers too, and the main process needs them until its batch is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_workers(
    items: Dataset[Any],
    batches: Sequence[Tensor],
    workers: int,
    collate: Callable[[list[Any]], Any],
    *,
    pin_memory: bool = False,
) -> Iterator[Any]:
    """For each tensor of positions: its items, collated. `workers` is the number on this machine:
    torchrun's processes divide them."""
    if workers:
        workers = min(max(1, workers // local_processes()), cores())
    loader = DataLoader(
        items,
        batch_sampler=[batch.tolist() for batch in batches],
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        worker_init_fn=ignore_interrupts,
        # Order and draws are fixed already; torch's global generator must stay untouched.
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise AmataError(
            "a worker process that decodes images died, perhaps for lack of memory; lower "
            "data.workers"
        ) from None
