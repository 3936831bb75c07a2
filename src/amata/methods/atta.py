"""ATTA (Zheng et al. 2020, arXiv 1912.11969): few steps from last epoch's perturbation.

u = (K, alpha): K steps per visit, from the perturbation that the sample had at its last visit. The
store keeps perturbations in the frame of the padded image. The batch's crop and flip are applied to
read them and inverted exactly to write them. Every `reset` epochs the store is cleared, and a
sample then starts at 0.001 N(0, 1). Amata: `early_reset` = 2 during the first `early_epochs` = 5
epochs, so that early attacks are weak. The reference code divides the mean loss by the batch size
once more; `loss_scale = "reference"` does the same and needs another learning rate. Its padding is
grey, ours is black.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from amata.batch import Batch
from amata.methods.contract import Memory, Method, Net
from amata.methods.stored import FRESH, clear, open_store, read, write
from amata.quantity import Count, NotNegative, Whole
from amata.schedules import Control
from amata.seeds import draw


@dataclass(frozen=True, kw_only=True)
class ATTA(Method):
    refuses: ClassVar[tuple[str, ...]] = ("size",)
    memory_images: ClassVar[tuple[str, ...]] = ("store", FRESH)
    epoch_fields: ClassVar[tuple[str, ...]] = ("early_epochs",)
    reset: Count = 10
    """Epochs between two resets of the stored perturbations."""
    early_reset: Whole = 0
    """The same during the early epochs; 0 turns it off."""
    early_epochs: Whole = 5
    """How many epochs count as early."""
    noise: NotNegative = 0.001
    """Standard deviation of the start after a reset."""
    loss_scale: Literal["mean", "reference"] = "mean"
    """Mean loss, or as in the reference code: divided by the batch size once more."""
    store: Literal["device", "cpu"] = "device"
    """Where the perturbations are stored."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        self._prepare(batch, memory)
        store = memory["store"]
        ids = batch.ids.to(store.device)
        delta = read(store, ids, batch.frame).to(x.device)
        fresh = memory[FRESH][ids].to(x.device).view(-1, 1, 1, 1)
        noise = draw(torch.randn, rng, x.shape, x.device, x.dtype, rows=batch.rows)
        delta = torch.where(fresh, self.noise * noise, delta)
        x_adv = region.project(x + delta)
        x_adv = net.ascent(region, x_adv, y, u.steps, u.step_size)  # k = 1 .. K
        whole = batch.rows.total if batch.rows else len(x)
        net.backward(x_adv, y, scale=1 / whole if self.loss_scale == "reference" else 1.0)
        net.apply()
        write(store, x_adv - x, ids, batch.frame)
        # index_fill_: assigning False would synchronise with the GPU
        memory[FRESH].index_fill_(0, ids, False)

    def _prepare(self, batch: Batch, memory: Memory) -> None:
        """Create the store, and clear it when an epoch e (from 1) has e % reset = 0."""
        device = torch.device("cpu") if self.store == "cpu" else batch.x.device
        if open_store("atta", ("store",), batch, memory, device, batch.frame):
            every = (
                self.early_reset
                if self.early_reset and batch.epoch < self.early_epochs
                else self.reset
            )
            if (batch.epoch + 1) % every == 0:
                clear(memory, ("store",))
