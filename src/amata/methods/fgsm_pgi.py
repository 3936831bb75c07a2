"""FGSM-PGI (Jia et al. 2022, arXiv 2207.08859): one step from a stored prior, and a loss that holds
the logits before and after the step together.

The paper's FGSM-MEP, in the form of its public code. Every image keeps a perturbation delta and a
momentum m of its gradients. With g the gradient at x + delta: m <- g / |g|_1 + 0.3 m, the norm
over the batch; the next visit starts at clip(delta + alpha sign m), and the step of this one is
clip(delta + alpha sign g). The loss is CE(x_adv) + 10 MSE(f(x_adv), f(x + delta)), with gradients
through both. Every 40 epochs delta is reset to eps times random signs, and m to 0.

u = (K, alpha): K = 1 with alpha = eps is the paper's. With more steps both sequences continue: each
step takes one gradient, at the image that is trained on. K = 0 trains on x + delta alone, one pass
and no regulariser. So Amata may anneal K, also from 0.

The public code does not undo crops and flips: it adds what it stored of an image's last crop to its
next one. `aligned = false` does the same. The public code attacks the smoothed loss and does not
clip x + delta to [0, 1] before the step; here attacks ascend the cross-entropy and x + delta is
feasible. Where a batch comes in parts, each estimates the norm of the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from amata.batch import Batch
from amata.losses import Loss
from amata.methods.contract import Memory, Method, Net
from amata.methods.stored import FRESH, clear, open_store, read, write
from amata.quantity import Count, NotNegative
from amata.schedules import Control
from amata.seeds import draw

KEYS = ("store", "momentum")


@dataclass(frozen=True, kw_only=True)
class FGSMPGI(Method):
    may_collapse: ClassVar[bool] = True
    refuses: ClassVar[tuple[str, ...]] = ("size",)
    memory_images: ClassVar[tuple[str, ...]] = (*KEYS, FRESH)
    weight: NotNegative = 10.0
    """lambda: the weight of the squared distance between the logits before and after the step."""
    momentum: NotNegative = 0.3
    """The factor of the old momentum."""
    reset: Count = 40
    """Epochs between two resets of the stored perturbations."""
    aligned: bool = True
    """Whether stored perturbations follow the crop and flip of their image; not in the public
    code."""
    store: Literal["device", "cpu"] = "device"
    """Where perturbations and momenta are stored."""

    def step(
        self, net: Net, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
    ) -> None:
        x, y, region = batch.x, batch.y, self.ball.around(batch.x)
        frame = batch.frame if self.aligned else None
        device = torch.device("cpu") if self.store == "cpu" else x.device
        new = open_store("fgsm-pgi", KEYS, batch, memory, device, frame)
        if new and batch.epoch % self.reset == 0:
            clear(memory, KEYS)
        ids = batch.ids.to(device)
        self._start_fresh(batch, ids, rng, memory)
        # the prior: delta and m of the last visit
        start = region.project(x + read(memory["store"], ids, frame).to(x.device))
        m = read(memory["momentum"], ids, frame).to(x.device)
        x_adv = following = start
        share = len(x) / batch.rows.total if batch.rows else 1.0
        for _ in range(u.steps):  # one step in the paper
            g = net.input_grad(x_adv, y)
            # m <- g / |g|_1 + mu m
            norm = g.abs().sum().clamp_min(torch.finfo(g.dtype).tiny)
            m = g * (share / norm) + self.momentum * m
            # of the next visit: clip(delta + alpha sign m)
            following = region.project(region.ascend(following, m, u.step_size))
            # of this one: clip(delta + alpha sign g)
            x_adv = region.project(region.ascend(x_adv, g, u.step_size))
        if u.steps:
            net.backward((start, x_adv), y, loss=pgi_loss(net.loss, self.weight))
        else:
            net.backward(start, y)
        net.apply()
        write(memory["store"], following - x, ids, frame)
        write(memory["momentum"], m, ids, frame)

    def _start_fresh(self, batch: Batch, ids: Tensor, rng: torch.Generator, memory: Memory) -> None:
        """Give images without a perturbation eps times random signs, on the whole padded image; in
        L2 a random direction."""
        x, store = batch.x, memory["store"]
        shape = (len(x), *store.shape[1:])
        noise = draw(torch.randn, rng, shape, x.device, x.dtype, rows=batch.rows)
        noise = (self.ball.eps * self.ball.direction(noise)).to(store.device)
        fresh = memory[FRESH][ids].view(-1, 1, 1, 1)
        store[ids] = torch.where(fresh, noise, store[ids])
        # index_fill_: assigning False would synchronise with the GPU
        memory[FRESH].index_fill_(0, ids, False)


@cache  # one function for each loss and weight: an engine compiles every function that it is given
def pgi_loss(loss: Loss, weight: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def regularised(z: Tensor, z_adv: Tensor, y: Tensor) -> Tensor:
        return loss(z_adv, y) + weight * (z_adv - z).square().mean(1)

    return regularised
