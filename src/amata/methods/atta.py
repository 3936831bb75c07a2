"""ATTA (Zheng et al. 2020, arXiv 1912.11969): perturbations are kept from epoch to epoch, so that
few steps add up to a strong attack.

u = (K, alpha): K steps a visit, from where the sample's perturbation was left. The store holds
perturbations in the frame of the padded image; the batch's crop and flip are applied to read them
and inverted exactly to write them. Every `reset` epochs the store starts afresh, at 0.001 N(0, 1)
in the window in which a sample is next seen. Amata on it: `early_reset` = 2 during the first
`early_epochs` = 5, so that early attacks are weak. The reference divides the already averaged loss
by the batch size; `loss_scale = "reference"` does so too (it wants another rate). Its padding is
grey, ours black.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from amata.batch import Batch
from amata.errors import InputError
from amata.methods.contract import Memory, Net
from amata.quantity import whole
from amata.schedules import Control
from amata.seeds import draw
from amata.threat import Ball


@dataclass(frozen=True, kw_only=True)
class ATTA:
    # a store that several would each keep a part of, and next epoch need another
    one_process: ClassVar[bool] = True
    ball: Ball
    reset: int = 10
    """Epochs after which the kept perturbations start afresh."""
    early_reset: int = 0
    """The same during the early epochs; 0 is off."""
    early_epochs: int = 5
    """How many epochs are early."""
    noise: float = 0.001
    """Standard deviation of a fresh start."""
    loss_scale: Literal["mean", "reference"] = "mean"
    """The mean loss, or the reference's, which is divided by the batch size once more."""
    store: Literal["device", "cpu"] = "device"
    """Where the perturbations are kept."""

    def __post_init__(self) -> None:
        whole(self.reset, "reset", 1)
        whole(self.early_reset, "early_reset", 0)

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        self._prepare(batch, memory)
        ids = batch.ids.to(memory["store"].device)
        # the perturbations of these samples, in their padded frames
        kept = memory["store"][ids].to(x.device)
        delta = batch.frame.cut(kept) if batch.frame else kept
        fresh = memory["fresh"][ids].to(x.device).view(-1, 1, 1, 1)
        noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        delta = torch.where(fresh, self.noise * noise, delta)
        x_adv = region.project(x + delta)
        x_adv = net.ascent(region, x_adv, y, u.steps, u.step_size)  # k = 1 .. K
        whole = batch.rows.total if batch.rows else len(x)
        net.backward(x_adv, y, scale=1 / whole if self.loss_scale == "reference" else 1.0)
        net.apply()
        self._keep(batch, memory, ids, kept, x_adv - x)

    def _prepare(self, batch: Batch, memory: Memory) -> None:
        """The store, empty at first and again at the start of every epoch e (from 1) with e % reset
        = 0."""
        if batch.total == 0:
            raise InputError(
                "atta keeps a perturbation for every sample, so it needs data in memory: an "
                "iterable has no ids, and images of a folder "
                "are cut anew at every read unless data.in_memory is set"
            )
        device = torch.device("cpu") if self.store == "cpu" else batch.x.device
        if "store" not in memory:
            pad = batch.frame.pad if batch.frame else 0
            shape = (
                batch.total,
                batch.x.shape[1],
                batch.x.shape[2] + 2 * pad,
                batch.x.shape[3] + 2 * pad,
            )
            memory["store"] = torch.zeros(shape, device=device, dtype=batch.x.dtype)
            memory["fresh"] = torch.ones(batch.total, dtype=torch.bool, device=device)
            memory["epoch"] = torch.tensor(batch.epoch)
        elif memory["store"].device != device:  # a resumed run has it where it was loaded
            memory["store"], memory["fresh"] = (
                memory["store"].to(device),
                memory["fresh"].to(device),
            )
        if batch.epoch != int(memory["epoch"]):
            memory["epoch"] = torch.tensor(batch.epoch)
            every = (
                self.early_reset
                if self.early_reset and batch.epoch < self.early_epochs
                else self.reset
            )
            if (batch.epoch + 1) % every == 0:
                memory["store"].zero_()
                memory["fresh"].fill_(True)

    def _keep(self, batch: Batch, memory: Memory, ids: Tensor, kept: Tensor, delta: Tensor) -> None:
        store = memory["store"]
        store[ids] = (batch.frame.paste(kept, delta) if batch.frame else delta).to(store.device)
        # where assigning a number would make the host wait for the GPU
        memory["fresh"].index_fill_(0, ids, False)
