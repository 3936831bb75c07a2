"""The co-state of a recorded training, epoch by epoch, for networks of any size.

The exact co-state needs a Hessian product at the weights of every update (`trajectory`). This one
needs the weights at the start of each epoch and a few probe batches. An epoch is taken as a flow

    theta' = -S g(theta, u),   0 <= s <= 1,   p' = H S p

whose Hessian H, of the loss at fixed adversarial images, is that of the probe batches halfway
between the weights at both ends of the epoch. S is diagonal. For SGD it is the sum of the epoch's
learning rates over 1 - momentum: the limit of small learning rates. The steps of Adam and Muon do
not grow with the gradient, so there every tensor moves as far as it did in the recorded epoch, in
the direction of its gradient. Weight decay shrinks p by a factor.

Lanczos' method computes exp(-s S^1/2 H S^1/2) in few Hessian products, and is stable however long
the epoch is. Negative curvature counts as none: with H fixed for an epoch it would grow without
bound, which training does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from amata.batch import Batch
from amata.control.probing import Probe
from amata.engine import ProbeNet
from amata.methods import Memory, Method
from amata.schedules import Control
from amata.seeds import derive

Product = Callable[[Tensor], Tensor]


def carry_back(product: Product, p: Tensor, times: Sequence[float], order: int) -> list[Tensor]:
    """exp(-s A) p for each s of `times`, where `product` multiplies by the symmetric A, from
    `order` products. Negative eigenvalues count as 0."""
    size = p.norm()
    if size == 0:
        return [p for _ in times]
    basis, diagonal, beside = [p / size], [], []
    for _ in range(min(order, p.numel())):
        w = product(basis[-1])
        diagonal.append(torch.dot(w.double(), basis[-1].double()))
        for _ in range(2):  # once is not enough in float32
            for v in basis:
                w = w - torch.dot(w, v) * v
        length = w.norm()
        if length <= 1e-6 * torch.stack(diagonal).abs().max():
            break  # the space is invariant, so the result is exact
        basis.append(w / length)
        beside.append(length.double())
    order = len(diagonal)
    t = torch.diag(torch.stack(diagonal)).cpu()
    for i, value in enumerate(beside[: order - 1]):
        t[i, i + 1] = t[i + 1, i] = float(value)
    ritz, vectors = torch.linalg.eigh(t)
    found = []
    for time in times:
        weights = vectors @ (torch.exp(-time * ritz.clamp_min(0)) * vectors[0])
        parts = zip(weights.tolist(), basis, strict=False)
        found.append(size * sum((c * v for c, v in parts), torch.zeros_like(p)))
    return found


@dataclass(frozen=True)
class Motion:
    """How an epoch's gradients move the weights: S, and weight decay."""

    rate: float | None
    """S of SGD. None for optimisers whose steps do not grow with the gradient."""
    decay: float
    """The epoch multiplies the weights by exp(-decay)."""
    travelled: list[float]
    """How far each tensor moved in the recorded epoch."""
    sizes: list[int]
    """The number of weights in each tensor."""

    def scale(self, g: Tensor) -> Tensor:
        """S under the gradient g, a number for each weight."""
        if self.rate is not None:
            return torch.full_like(g, self.rate)
        parts = [
            torch.full_like(part, far) / part.norm().clamp_min(1e-12)
            for far, part in zip(self.travelled, g.split(self.sizes), strict=True)
        ]
        return torch.cat(parts)


@dataclass(frozen=True)
class EpochGains:
    """What the candidates of an epoch gain, and the co-state at its start."""

    gains: list[list[float]]
    """-<p, displacement> of each candidate, on each probe batch: the fall of the terminal cost, to
    first order."""
    costate: Tensor


def probe_epoch(
    net: ProbeNet,
    method: Method,
    batches: Sequence[Batch],
    memory: Memory,
    motion: Motion,
    own: Control,
    candidates: Sequence[Control],
    p: Tensor,
    *,
    order: int = 8,
    seed: int = 0,
) -> EpochGains:
    """The first term of H for every candidate, and the co-state before an epoch from the co-state p
    after it. `net` has the weights of mid-epoch; `own` is the recorded control."""
    probes = [Probe(net, method, batch, memory, derive(seed, i)) for i, batch in enumerate(batches)]
    parts, passes = [], []
    for probe in probes:
        parts.append(probe.displacement(own))
        passes.append(net.passes)
    g = _mean(parts)
    scale = motion.scale(g)
    root = scale.sqrt()

    def product(v: Tensor) -> Tensor:
        w = root * v
        found = [
            net.hessian_product(made, w, derive(seed, i, "layers")) for i, made in enumerate(passes)
        ]
        return root * _mean(found)

    middle, start = carry_back(product, root * p, [0.5, 1.0], order)
    safe = root.clamp_min(1e-30)  # a tensor that does not move keeps its co-state
    fixed = root == 0
    halfway, before = (
        torch.where(fixed, p, q / safe) * math.exp(-motion.decay * s)
        for s, q in ((0.5, middle), (1.0, start))
    )
    net.rewind()
    gains = []
    for v in candidates:
        each = parts if v == own else [probe.displacement(v) for probe in probes]
        weighed = (halfway * motion.scale(_mean(each))).double()
        gains.append([-float(weighed @ part.double()) for part in each])
    return EpochGains(gains, before)


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).mean(0)
