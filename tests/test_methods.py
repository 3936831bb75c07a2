"""Training methods: one conformance table, and each method against a straight-line oracle that
shares no code with it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata import recipes
from amata.batch import Batch, Frame
from amata.data.augment import crop_flip
from amata.engine import EMA, FastNet, PlainNet
from amata.losses import smooth_ce
from amata.methods import (
    ATTA,
    AWP,
    DAT,
    ERM,
    FAT,
    FGSMPGI,
    MART,
    METHODS,
    NFGSM,
    PGD,
    TRADES,
    YOPO,
    Fast,
    Free,
    Memory,
    Method,
    NuAT,
    planned_evals,
)
from amata.methods.fgsm_pgi import pgi_loss
from amata.methods.mart import mart_loss
from amata.schedules import Adaptive, Constant, Control, Linear, planned_controls
from amata.seeds import generator
from amata.threat import L2, Linf, Region
from amata.training.optim import make_optimizer
from tests.conftest import images, labels, small_net
from tests.toy import fit

EPS = 0.1
BALL = Linf(EPS)
U = Control(3, 0.05)
N, TOTAL, BATCHES = 6, 12, 6


class Scene:
    """What an oracle works with: the model in plain torch, one batch, and what it kept from the
    batches before."""

    def __init__(self, model: nn.Sequential) -> None:
        self.model = model
        self.sgd = sgd(model)
        self.kept: dict[str, Any] = {}
        self.cost = 0

    def grad_x(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.model.eval()
        leaf = x.clone().requires_grad_()
        z = self.model(leaf)
        F.cross_entropy(z, y, reduction="sum").backward()
        self.model.zero_grad()
        self.cost += len(x)
        assert leaf.grad is not None
        return leaf.grad, z.detach()

    def descend(self, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
        self.model.train()
        self.sgd.zero_grad()
        (scale * F.cross_entropy(self.model(x), y)).backward()
        self.sgd.step()
        self.cost += len(x)


def clip(x_adv: Tensor, x: Tensor) -> Tensor:
    return torch.clamp(torch.min(torch.max(x_adv, x - EPS), x + EPS), 0, 1).detach()


def in_range(x: Tensor) -> Tensor:
    """A pixel at 0 or 1 passes its gradient. torch.clamp does so before torch 2.14 only."""
    return torch.where(x < 0, 0.0, torch.where(x > 1, 1.0, x))


def uniform(x: Tensor, rng: torch.Generator, radius: float = EPS) -> Tensor:
    return torch.clamp(x + radius * (2 * torch.rand(x.shape, generator=rng) - 1), 0, 1)


def oracle_erm(s: Scene, b: Batch, rng: torch.Generator) -> None:
    s.descend(b.x, b.y)


def oracle_pgd(s: Scene, b: Batch, rng: torch.Generator) -> None:
    x_adv = uniform(b.x, rng)
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    s.descend(x_adv, b.y)


def oracle_pgd_clean(s: Scene, b: Batch, rng: torch.Generator) -> None:
    x_adv = uniform(b.x, rng)
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    s.model.train()
    s.sgd.zero_grad()
    F.cross_entropy(s.model(x_adv), b.y).backward()
    F.cross_entropy(s.model(b.x), b.y).backward()
    s.sgd.step()
    s.cost += 2 * N


def oracle_free(s: Scene, b: Batch, rng: torch.Generator) -> None:
    noise = s.kept.setdefault("noise", torch.zeros_like(b.x))
    for _ in range(U.steps):
        d = noise.clone().requires_grad_()
        s.model.train()
        s.sgd.zero_grad()
        F.cross_entropy(s.model(in_range(b.x + d)), b.y).backward()
        assert d.grad is not None
        noise.copy_(torch.clamp(noise + U.step_size * d.grad.sign(), -EPS, EPS))
        s.sgd.step()
        s.cost += N


def oracle_fast(s: Scene, b: Batch, rng: torch.Generator) -> None:
    x_adv = uniform(b.x, rng)
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    s.descend(x_adv, b.y)


def oracle_nfgsm(s: Scene, b: Batch, rng: torch.Generator) -> None:
    x_adv = uniform(b.x, rng, 2 * EPS)
    for _ in range(U.steps):
        x_adv = torch.clamp(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), 0, 1)
    s.descend(x_adv, b.y)


def oracle_trades(s: Scene, b: Batch, rng: torch.Generator) -> None:
    s.model.eval()
    p = F.softmax(s.model(b.x), 1).detach()
    x_adv = clip(b.x + 0.001 * torch.randn(b.x.shape, generator=rng), b.x)
    for _ in range(U.steps):
        leaf = x_adv.clone().requires_grad_()
        (g,) = torch.autograd.grad(
            F.kl_div(F.log_softmax(s.model(leaf), 1), p, reduction="sum"), leaf
        )
        x_adv = clip(x_adv + U.step_size * g.sign(), b.x)
        s.cost += N
    s.model.train()
    s.sgd.zero_grad()
    z, z_adv = s.model(b.x), s.model(x_adv)
    kl = F.kl_div(F.log_softmax(z_adv, 1), F.softmax(z, 1), reduction="batchmean")
    (F.cross_entropy(z, b.y) + 6.0 * kl).backward()
    s.sgd.step()
    s.cost += 2 * N


def oracle_mart(s: Scene, b: Batch, rng: torch.Generator, beta: float = 5.0) -> None:
    x_adv = clip(b.x + 0.001 * torch.randn(b.x.shape, generator=rng), b.x)
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    s.model.train()
    s.sgd.zero_grad()
    p, q = F.softmax(s.model(b.x), 1), F.softmax(s.model(x_adv), 1)
    loss = torch.tensor(0.0)
    for i, y in enumerate(b.y.tolist()):
        wrong = [q[i, k] for k in range(q.shape[1]) if k != y]
        kl = (p[i] * (p[i] / q[i]).log()).sum()
        loss = loss - q[i, y].log() - (1 - torch.stack(wrong).max()).log()
        loss = loss + beta * kl * (1 - p[i, y])
    (loss / N).backward()
    s.sgd.step()
    s.cost += 2 * N


def oracle_nuat(s: Scene, b: Batch, rng: torch.Generator, steps: int = U.steps) -> None:
    weight = 0.5 * min(b.epoch / 2, 1)
    batches = s.kept["batches"] = s.kept.get("batches", 0) + 1
    s.model.eval()
    z = s.model(b.x).detach()
    signs = torch.sign(torch.rand(b.x.shape, generator=rng) - 0.5)
    x_adv = torch.clamp(b.x + EPS / 2 * signs, 0, 1)
    for k in range(steps):
        leaf = x_adv.clone().requires_grad_()
        z_adv = s.model(leaf)
        loss = F.cross_entropy(z_adv, b.y, reduction="sum")
        if (batches % 2 == 0) if steps == 1 else (k % 2 == 0):
            loss = loss + weight * torch.linalg.svdvals(z_adv - z).sum()
        (g,) = torch.autograd.grad(loss, leaf)
        x_adv = clip(x_adv + U.step_size * g.sign(), b.x)
        s.cost += N
    s.model.train()
    s.sgd.zero_grad()
    z, z_adv = s.model(b.x), s.model(x_adv)
    norm = torch.linalg.svdvals(z - z_adv).sum()
    (F.cross_entropy(z, b.y) + weight * norm / N).backward()
    s.sgd.step()
    s.cost += 2 * N


def oracle_fat(s: Scene, b: Batch, rng: torch.Generator, tau: int = 1) -> None:
    x_adv = uniform(b.x, rng)
    counter, alive = [tau] * N, list(range(N))
    for _ in range(U.steps):
        g, z = s.grad_x(x_adv[alive], b.y[alive])
        still = []
        for row, i in enumerate(alive):
            if z[row].argmax() != b.y[i]:
                if counter[i] == 0:
                    continue
                counter[i] -= 1
            still.append((row, i))
        if not still:
            break
        rows, alive = [r for r, _ in still], [i for _, i in still]
        noise = 0.001 * torch.randn(len(alive), *b.x.shape[1:], generator=rng)
        x_adv[alive] = clip(x_adv[alive] + U.step_size * g[rows].sign() + noise, b.x[alive])
    s.descend(x_adv, b.y)


def oracle_fat_stages(s: Scene, b: Batch, rng: torch.Generator) -> None:
    oracle_fat(s, b, rng, tau=(2, 0, 1)[b.epoch])


def fosc(x: Tensor, centre: Tensor, g: Tensor) -> float:
    return EPS * float(g.abs().sum()) - float(((x - centre) * g).sum())


def feasible_gap(x: Tensor, centre: Tensor, g: Tensor) -> float:
    """Pixel by pixel: the gain of the best value in the ball and in [0, 1]."""
    gap = 0.0
    for pixel, middle, slope in zip(*(t.flatten().tolist() for t in (x, centre, g)), strict=True):
        best = min(1, middle + EPS) if slope > 0 else max(0, middle - EPS)
        gap += (best - pixel) * slope
    return gap


def oracle_dat(
    s: Scene,
    b: Batch,
    rng: torch.Generator,
    from_start: bool = False,
    measure: Callable[[Tensor, Tensor, Tensor], float] = fosc,
) -> None:
    c = 0.02 * (1 - b.epoch / 4)
    x_adv = uniform(b.x, rng)
    centre = x_adv.clone() if from_start else b.x
    alive = list(range(N))
    for k in range(U.steps):
        g, _ = s.grad_x(x_adv[alive], b.y[alive])
        if k:
            rows = [r for r, i in enumerate(alive) if measure(x_adv[i], centre[i], g[r]) > c]
            s.kept["stopped"] = s.kept.get("stopped", 0) + len(alive) - len(rows)
            g, alive = g[rows], [alive[r] for r in rows]
            if not alive:
                break
        x_adv[alive] = clip(x_adv[alive] + U.step_size * g.sign(), b.x[alive])
    s.descend(x_adv, b.y)


def oracle_dat_from_start(s: Scene, b: Batch, rng: torch.Generator) -> None:
    oracle_dat(s, b, rng, from_start=True)


def oracle_dat_feasible(s: Scene, b: Batch, rng: torch.Generator) -> None:
    oracle_dat(s, b, rng, measure=feasible_gap)


def oracle_yopo(reference: bool, average: bool = False) -> Callable[..., None]:
    def oracle(s: Scene, b: Batch, rng: torch.Generator) -> None:
        f0, rest = s.model[0], s.model[1:]
        s.model.train()
        s.sgd.zero_grad()
        x_adv = uniform(b.x, rng)
        for _ in range(U.steps):
            z = f0(x_adv)
            cut = z.detach().requires_grad_()
            F.cross_entropy(rest(cut), b.y).backward()
            p = cut.grad
            assert p is not None
            if reference:
                z.backward(p)
            s.cost += N
            for _ in range(2):
                leaf = x_adv.clone().requires_grad_()
                (g,) = torch.autograd.grad((f0(leaf) * p).sum(), leaf)
                x_adv = clip(x_adv + U.step_size * g.sign(), b.x)
            (f0(x_adv) * p).sum().backward()
        if average:
            for weight in s.model.parameters():
                assert weight.grad is not None
                weight.grad /= U.steps
        s.sgd.step()

    return oracle


def oracle_atta(s: Scene, b: Batch, rng: torch.Generator, scale: float = 1.0) -> None:
    assert b.frame is not None
    side, pad = b.x.shape[-1], b.frame.pad
    store = s.kept.setdefault("store", {})
    if s.kept.get("epoch") != b.epoch:
        s.kept["epoch"] = b.epoch
        if (b.epoch + 1) % 2 == 0:  # reset = 2
            store.clear()
    fresh = 0.001 * torch.randn(b.x.shape, generator=rng)
    x_adv = torch.empty_like(b.x)
    for i in range(N):
        key = int(b.ids[i])
        delta = fresh[i]
        if key in store:
            delta = torch.stack(
                [
                    torch.stack([store[key][:, r, c] for c in b.frame.columns[i]], 1)
                    for r in b.frame.rows[i]
                ],
                1,
            )
        x_adv[i] = clip(b.x[i] + delta, b.x[i])
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    s.descend(x_adv, b.y, scale)
    for i in range(N):
        canvas = store.get(int(b.ids[i]), torch.zeros(1, side + 2 * pad, side + 2 * pad)).clone()
        for a, r in enumerate(b.frame.rows[i]):
            for d, c in enumerate(b.frame.columns[i]):
                canvas[:, r, c] = (x_adv - b.x)[i, :, a, d]
        store[int(b.ids[i])] = canvas


def oracle_atta_reference(s: Scene, b: Batch, rng: torch.Generator) -> None:
    oracle_atta(s, b, rng, scale=1 / N)


def oracle_fgsm_pgi(aligned: bool = True) -> Callable[..., None]:
    """Image by image and pixel by pixel, with dicts for stores."""

    def oracle(s: Scene, b: Batch, rng: torch.Generator) -> None:
        assert b.frame is not None
        side, pad = b.x.shape[-1], b.frame.pad if aligned else 0
        stores = [s.kept.setdefault(key, {}) for key in ("store", "momentum")]
        if b.epoch % 2 == 0 and b.ids[0] == 0:  # reset = 2, at the start of an epoch
            for store in stores:
                store.clear()
        signs = torch.randn(N, 1, side + 2 * pad, side + 2 * pad, generator=rng).sign()

        def places(i: int) -> list[tuple[int, int, int, int]]:
            assert b.frame is not None
            lines = b.frame.rows[i].tolist() if aligned else range(side)
            columns = b.frame.columns[i].tolist() if aligned else range(side)
            return [(a, d, r, c) for a, r in enumerate(lines) for d, c in enumerate(columns)]

        start, m = torch.empty_like(b.x), torch.zeros_like(b.x)
        for i, key in enumerate(b.ids.tolist()):
            delta = stores[0].setdefault(key, EPS * signs[i])
            momentum = stores[1].setdefault(key, torch.zeros_like(delta))
            for a, d, r, c in places(i):
                start[i, :, a, d] = b.x[i, :, a, d] + delta[:, r, c]
                m[i, :, a, d] = momentum[:, r, c]
        x_adv = following = start = clip(start, b.x)
        for _ in range(U.steps):
            g, _ = s.grad_x(x_adv, b.y)
            m = g / g.abs().sum() + 0.3 * m
            following = clip(following + U.step_size * m.sign(), b.x)
            x_adv = clip(x_adv + U.step_size * g.sign(), b.x)
        s.model.train()
        s.sgd.zero_grad()
        z, z_adv = s.model(start), s.model(x_adv)
        (F.cross_entropy(z_adv, b.y) + 10 * F.mse_loss(z_adv, z)).backward()
        s.sgd.step()
        s.cost += 2 * N
        for i, key in enumerate(b.ids.tolist()):
            for a, d, r, c in places(i):
                stores[0][key][:, r, c] = (following - b.x)[i, :, a, d]
                stores[1][key][:, r, c] = m[i, :, a, d]

    return oracle


GAMMA = 0.05


def awp_update(s: Scene, loss: Callable[[nn.Module], Tensor]) -> None:
    """With a proxy, as the reference code has it. The proxy keeps the first pass away from
    BatchNorm's statistics."""
    proxy = copy.deepcopy(s.model).train()
    loss(proxy).backward()
    s.sgd.zero_grad()
    before = [p.detach().clone() for p in s.model.parameters()]
    for p, q in zip(s.model.parameters(), proxy.parameters(), strict=True):
        assert q.grad is not None
        if p.dim() > 1:
            p.data += GAMMA * p.data.norm() * q.grad / (q.grad.norm() + 1e-20)
    loss(s.model.train()).backward()
    for p, value in zip(s.model.parameters(), before, strict=True):
        p.data.copy_(value)
    s.sgd.step()


def oracle_awp(s: Scene, b: Batch, rng: torch.Generator, clean: bool = False) -> None:
    x_adv = uniform(b.x, rng)
    for _ in range(U.steps):
        x_adv = clip(x_adv + U.step_size * s.grad_x(x_adv, b.y)[0].sign(), b.x)
    inputs = [x_adv, b.x] if clean else [x_adv]

    def loss(model: nn.Module) -> Tensor:
        return sum((F.cross_entropy(model(x), b.y) for x in inputs), torch.zeros(()))

    awp_update(s, loss)
    s.cost += 2 * N * len(inputs)


def oracle_awp_clean(s: Scene, b: Batch, rng: torch.Generator) -> None:
    oracle_awp(s, b, rng, clean=True)


def oracle_awp_trades(s: Scene, b: Batch, rng: torch.Generator) -> None:
    p = F.softmax(s.model.eval()(b.x), 1).detach()
    x_adv = clip(b.x + 0.001 * torch.randn(b.x.shape, generator=rng), b.x)
    for _ in range(U.steps):
        leaf = x_adv.clone().requires_grad_()
        kl = F.kl_div(F.log_softmax(s.model(leaf), 1), p, reduction="sum")
        x_adv = clip(x_adv + U.step_size * torch.autograd.grad(kl, leaf)[0].sign(), b.x)

    def loss(model: nn.Module) -> Tensor:
        z, z_adv = model(b.x), model(x_adv)
        kl = F.kl_div(F.log_softmax(z_adv, 1), F.softmax(z, 1), reduction="batchmean")
        return F.cross_entropy(z, b.y) + 6.0 * kl

    awp_update(s, loss)
    s.cost += (U.steps + 4) * N


def oracle_awp_free(s: Scene, b: Batch, rng: torch.Generator) -> None:
    noise = s.kept.setdefault("noise", torch.zeros_like(b.x))
    for _ in range(U.steps):
        d = noise.clone().requires_grad_()
        found: list[Tensor] = []

        def loss(model: nn.Module, d: Tensor = d, found: list[Tensor] = found) -> Tensor:
            value = F.cross_entropy(model(in_range(b.x + d)), b.y)
            if not found:  # the images' gradient is that of the unperturbed weights
                found += torch.autograd.grad(value, d, retain_graph=True)
            return value

        awp_update(s, loss)
        noise.copy_(torch.clamp(noise + U.step_size * found[0].sign(), -EPS, EPS))
        s.cost += 2 * N


# name -> (method, oracle, gradient evaluations per image under U, or None where samples stop by
# themselves). A new method is one row.
Row = tuple[Method, Callable[..., None], int | None]
K = U.steps
TABLE: dict[str, Row] = {
    "erm": (ERM(ball=BALL), oracle_erm, 1),
    "pgd": (PGD(ball=BALL), oracle_pgd, K + 1),
    "free": (Free(ball=BALL), oracle_free, K),
    "fast": (Fast(ball=BALL), oracle_fast, K + 1),
    "nfgsm": (NFGSM(ball=BALL), oracle_nfgsm, K + 1),
    "trades": (TRADES(ball=BALL), oracle_trades, K + 2),
    "mart": (MART(ball=BALL), oracle_mart, K + 2),
    "nuat": (NuAT(ball=BALL, weight=0.5, rise=2), oracle_nuat, K + 2),
    "fat": (FAT(ball=BALL, tau=((0, 1),)), oracle_fat, None),
    "dat": (DAT(ball=BALL, c_max=0.02, dynamic_epochs=4), oracle_dat, None),
    "yopo": (YOPO(ball=BALL, inner=2), oracle_yopo(reference=True), K),
    "atta": (ATTA(ball=BALL, reset=2), oracle_atta, K + 1),
    "fgsm-pgi": (FGSMPGI(ball=BALL, reset=2), oracle_fgsm_pgi(), K + 2),
}
VARIANTS: dict[str, Row] = {
    "pgd with the clean term": (PGD(ball=BALL, clean_term=True), oracle_pgd_clean, K + 2),
    "yopo, layer one as in the paper": (
        YOPO(ball=BALL, inner=2, layer_one="paper"),
        oracle_yopo(reference=False),
        K,
    ),
    "yopo, mean over passes": (
        YOPO(ball=BALL, inner=2, pass_average=True),
        oracle_yopo(reference=True, average=True),
        K,
    ),
    "fat in stages": (FAT(ball=BALL, tau=((0, 2), (1, 0), (2, 1))), oracle_fat_stages, None),
    "dat from the random start": (
        DAT(ball=BALL, c_max=0.02, dynamic_epochs=4, centre="start"),
        oracle_dat_from_start,
        None,
    ),
    "dat, feasible gap": (
        DAT(ball=BALL, c_max=0.02, dynamic_epochs=4, criterion="feasible"),
        oracle_dat_feasible,
        None,
    ),
    "atta, loss of the reference": (
        ATTA(ball=BALL, reset=2, loss_scale="reference"),
        oracle_atta_reference,
        K + 1,
    ),
    "atta, store on the CPU": (ATTA(ball=BALL, reset=2, store="cpu"), oracle_atta, K + 1),
    "awp": (AWP(PGD(ball=BALL), gamma=GAMMA), oracle_awp, K + 2),
    "awp, two terms": (
        AWP(PGD(ball=BALL, clean_term=True), gamma=GAMMA),
        oracle_awp_clean,
        K + 4,
    ),
    "awp around trades": (AWP(TRADES(ball=BALL), gamma=GAMMA), oracle_awp_trades, K + 4),
    "awp around free": (AWP(Free(ball=BALL), gamma=GAMMA), oracle_awp_free, 2 * K),
    "fgsm-pgi, as in the public code": (
        FGSMPGI(ball=BALL, reset=2, aligned=False, store="cpu"),
        oracle_fgsm_pgi(aligned=False),
        K + 2,
    ),
}
ALL = {**TABLE, **VARIANTS}
rows = pytest.mark.parametrize("name", ALL)


def test_every_method_has_a_row() -> None:
    assert set(TABLE) == set(METHODS)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def batch_of(index: int) -> Batch:
    """Two batches an epoch over twelve samples, with new crops and flips each time."""
    ids = torch.arange(N) + N * (index % 2)
    whole = images(TOTAL, seed=1)[ids]
    x, frame = crop_flip(whole, generator(index, "augment"), pad=1)
    return Batch(x, labels(TOTAL)[ids], ids, TOTAL, index // 2, frame)


def train(
    method: Method, model: nn.Module, u: Control = U, batches: int = BATCHES, **options: Any
) -> tuple[PlainNet, Memory]:
    net = PlainNet(model, sgd(model), first_layer="0", **options)
    memory: Memory = {}
    for index in range(batches):
        torch.manual_seed(index)
        method.step(net, batch_of(index), u, generator(0, index, "method"), memory)
    return net, memory


def run_oracle(oracle: Callable[..., None], model: nn.Sequential, batches: int = BATCHES) -> Scene:
    scene = Scene(model)
    for index in range(batches):
        torch.manual_seed(index)
        oracle(scene, batch_of(index), generator(0, index, "method"))
    return scene


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


# The gradient of TRADES' divergence vanishes at the clean image. Near it, its signs in float32 are
# those of rounding errors, which differ between versions of torch.
SINGLE = [name for name in ALL if "trades" not in name]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in ALL] + [(name, torch.float32) for name in SINGLE],
    indirect=["dtype"],
    ids=str,
)
def test_a_method_equals_its_oracle_over_several_batches(name: str, dtype: torch.dtype) -> None:
    method, oracle, _ = ALL[name]
    batches = BATCHES if dtype == torch.float64 else 3  # the third has images of the first
    ours, theirs = small_net(), small_net()
    net, memory = train(method, ours, batches=batches)
    scene = run_oracle(oracle, theirs, batches)
    assert {p.dtype for p in ours.parameters()} == {dtype}
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-6), key
    assert net.grad_evals == scene.cost, "the meter counts what was really computed"
    assert any(
        not torch.equal(a, b)
        for a, b in zip(ours.parameters(), small_net().parameters(), strict=True)
    ), "nothing was learned"
    if "noise" in scene.kept:
        torch.testing.assert_close(memory["noise"], scene.kept["noise"])
    for kept in ("store", "momentum"):
        for key, canvas in scene.kept.get(kept, {}).items():
            torch.testing.assert_close(memory[kept][key], canvas)
    if name.startswith("dat") and batches == BATCHES:
        assert 0 < scene.kept["stopped"] < BATCHES * N, (
            "the criterion should stop some samples and not all"
        )


@rows
def test_the_cost_meter_follows_the_formula(name: str) -> None:
    method, _, cost = ALL[name]
    net, _ = train(method, small_net())
    if cost is None:
        assert BATCHES * N < net.grad_evals < BATCHES * N * (K + 1), (
            "stopped samples should have left the batch"
        )
    else:
        assert net.grad_evals == BATCHES * N * cost
    # n steps and one weight gradient a pass
    assert net.first_layer_evals == (BATCHES * N * K * 3 if "yopo" in name else 0)


@rows
def test_a_method_draws_only_from_its_generator_and_leaves_no_gradient(name: str) -> None:
    method, _, _ = ALL[name]
    nets = [small_net(), small_net()]
    for seed, model in enumerate(nets):
        still(model)
        torch.manual_seed(seed)
        net = PlainNet(model, sgd(model), first_layer="0")
        method.step(net, batch_of(0), U, generator(7), {})
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def still(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_new_method_takes_one_file_one_name_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Noise(Method):  # its file
        share: float = 1.0

        def step(
            self, net: Any, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
        ) -> None:
            net.backward(self.ball.scaled(self.share).around(batch.x).start(rng), batch.y)
            net.apply()

    def oracle_noise(s: Scene, b: Batch, rng: torch.Generator) -> None:
        s.descend(uniform(b.x, rng, 0.5 * EPS), b.y)

    monkeypatch.setitem(METHODS, "noise", Noise)  # its name
    monkeypatch.setitem(ALL, "noise", (Noise(ball=BALL, share=0.5), oracle_noise, 1))  # its row
    test_a_method_equals_its_oracle_over_several_batches("noise", torch.float32)
    test_the_cost_meter_follows_the_formula("noise")
    test_a_method_draws_only_from_its_generator_and_leaves_no_gradient("noise")
    # its recipe
    recipe = recipes.load(
        "mnist5k-amata",
        ["method.name=noise", "method.share=1/2", "train.epochs=1", "train.device=cpu"],
    )
    assert recipe.method == Noise(ball=Linf(0.2), share=0.5)
    assert fit(small_net(), (images(8), labels(8)), None, recipe).grad_evals == 8


# --- what a method must reduce to
# ------------------------------------------------------------------------------------------


def both(
    first: Method,
    second: Method,
    u: Control = U,
    v: Control | None = None,
    net: Callable[[], nn.Module] = small_net,
) -> bool:
    a, b = still(net()), still(net())
    train(first, a, u)
    train(second, b, v or u)
    return equal(a, b)


def test_trades_with_beta_0_is_erm() -> None:
    assert both(TRADES(ball=BALL, beta=0.0), ERM(ball=BALL))


def test_mart_with_beta_0_is_boosted_cross_entropy() -> None:
    z, z_adv = torch.randn(2, 5, 4, generator=generator(0), dtype=torch.float64)
    y, q = labels(5), z_adv.softmax(1)
    others = q.masked_fill(F.one_hot(y, 4).bool(), 0).amax(1)
    boosted = -q[range(5), y].log() - (1 - others).log()
    torch.testing.assert_close(mart_loss(0.0)(z, z_adv, y), boosted)
    p = z.softmax(1)
    kl = (p * (p / q).log()).sum(1)
    torch.testing.assert_close(mart_loss(5.0)(z, z_adv, y), boosted + 5 * kl * (1 - p[range(5), y]))
    torch.testing.assert_close(mart_loss(5.0)(z_adv, z_adv, y), boosted)


def test_nuat_without_the_norm_is_erm() -> None:
    assert both(NuAT(ball=BALL, weight=0.0), ERM(ball=BALL))
    assert both(NuAT(ball=BALL, weight=3.0), ERM(ball=BALL), Control(1, EPS)) is False
    smoothed = still(small_net())
    train(ERM(ball=BALL), smoothed, loss=smooth_ce(0.4))
    ours = still(small_net())
    train(NuAT(ball=BALL, weight=0.0), ours, loss=smooth_ce(0.4))
    assert equal(ours, smoothed)


def test_with_one_step_every_second_batch_of_nuat_attacks_the_norm() -> None:
    """The number of batches so far is memory, so a resumed run goes on with it."""
    ours, theirs = small_net(), small_net()
    _, memory = train(NuAT(ball=BALL, weight=0.5, rise=2), ours, Control(1, U.step_size))
    assert memory["batches"] == BATCHES - 1
    scene = run_oracle(partial(oracle_nuat, steps=1), theirs)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-6), key
    assert scene.cost == 3 * N * BATCHES


def test_nuat_attacks_the_norm_in_half_of_the_batches_with_one_step() -> None:
    """With K = 1.5 one and two steps alternate. Counted with the others, none of the batches with
    one step would attack the norm."""
    seen: list[bool] = []

    class Watch(PlainNet):
        def ascent(self, region: Any, x: Tensor, y: Tensor, *rest: Any, **more: Any) -> Tensor:
            seen.append(bool(y[0, -1] > 0))
            return super().ascent(region, x, y, *rest, **more)

    model, memory = small_net(), dict[str, Tensor]()
    net, method = Watch(model, sgd(model)), NuAT(ball=BALL, rise=0)
    u = Control(1.5, EPS)
    for index in range(8):
        method.step(net, batch_of(index), u.for_batch(index), generator(0, index), memory)
    assert seen == [True, False, False, True, False, True] * 2


def test_nuats_lambda_rises_linearly_and_stays() -> None:
    seen: list[float] = []

    class Watch(PlainNet):
        def backward(self, x: Any, y: Tensor, **options: Any) -> Tensor | None:
            seen.append(float(options["given"][0]))
            return super().backward(x, y, **options)

    model = small_net()
    net = Watch(model, sgd(model))
    for method in (NuAT(ball=BALL, weight=3.0, rise=3), NuAT(ball=BALL, weight=3.0, rise=0)):
        for epoch in range(5):
            method.step(net, batch_of(0)._replace(epoch=epoch), U, generator(0), {})
    assert seen == [0.0, 1.0, 2.0, 3.0, 3.0] + [3.0] * 5


def test_reach_makes_training_larger_than_testing() -> None:
    far, u = BALL.scaled(1.5), Control(K, 0.1)
    assert both(PGD(ball=BALL, reach=1.5), PGD(ball=far), u)
    assert not both(PGD(ball=BALL), PGD(ball=far), u)


def test_awp_without_gamma_or_in_its_warm_up_is_the_method() -> None:
    pgd = PGD(ball=BALL)
    assert both(AWP(pgd, gamma=0.0), pgd)
    assert both(AWP(pgd, gamma=0.1, warmup=BATCHES // 2), pgd)
    assert not both(AWP(pgd, gamma=0.1, warmup=BATCHES // 2 - 1), pgd)


@pytest.mark.parametrize("engine", [PlainNet, FastNet])
def test_awps_loss_is_that_of_the_perturbed_weights(engine: type[PlainNet]) -> None:
    linear = nn.Linear(36, 4).double()
    model = nn.Sequential(nn.Flatten(), linear)
    b, weights = batch_of(0), torch.tensor([1.0, 2.0, 0.5, 1.0]).double()
    b = b._replace(x=b.x.double())
    options: Any = {"precision": "fp32", "loss": smooth_ce(0.1), "class_weights": weights}

    def loss_at(w: Tensor) -> Tensor:
        z = F.linear(b.x.flatten(1), w, linear.bias)
        return (weights[b.y] * smooth_ce(0.1)(z, b.y)).mean()

    w = linear.weight.detach().clone().requires_grad_()
    loss = loss_at(w)
    (g,) = torch.autograd.grad(loss, w)
    expected = float(loss_at(w + 0.1 * w.norm() * g / g.norm()).detach())
    net = engine(model, sgd(model), **options)
    AWP(ERM(ball=BALL), gamma=0.1).step(net, b, U, generator(0), {})
    assert float(net.last_loss) == pytest.approx(expected)  # type: ignore[arg-type]
    assert expected > 1.01 * float(loss.detach())


def test_awp_tells_what_its_method_tells_and_is_refused_where_it_cannot_work() -> None:
    from amata.errors import InputError

    for kind in (ATTA, ERM, Free, NFGSM, TRADES):
        inner = kind(ball=BALL)
        awp = AWP(inner, gamma=0.1)
        for name in (*Method.__annotations__, "training_ball", "whole_batch"):
            assert getattr(awp, name) == getattr(inner, name), name
        assert awp.scaled(0.5) == AWP(inner.scaled(0.5), gamma=0.1)
    for wrong in (YOPO(ball=BALL), AWP(PGD(ball=BALL), gamma=0.1), "pgd"):
        with pytest.raises(InputError, match=r"awp does not work around|must be a method"):
            AWP(wrong, gamma=0.1)  # type: ignore[arg-type]

    class Splits(PGD):
        def step(self, net: Any, batch: Batch, *rest: Any) -> None:
            net.costate(batch.x, batch.y, first=True)

    model = small_net()
    net = PlainNet(model, sgd(model), first_layer="0")
    with pytest.raises(InputError, match="this method splits the network"):
        AWP(Splits(ball=BALL), gamma=0.1).step(net, batch_of(0), U, generator(0), {})


def test_awp_repeats_what_was_given_to_the_loss() -> None:
    """A copy of it: graphs overwrite what they return, and the next part of a batch replays
    them."""

    @dataclass(frozen=True, kw_only=True)
    class Distilled(Method):
        reused: bool

        def step(self, net: Any, batch: Batch, *rest: Any) -> None:
            z = batch.x.flatten(1)[:, :4].contiguous()
            if self.reused:
                z = rest[2].setdefault("z", torch.zeros_like(z)).copy_(z)
            net.backward(batch.x, batch.y, loss=distilled, given=(z,))
            net.apply()

    def distilled(z: Tensor, y: Tensor, given: Tensor) -> Tensor:
        return (z - given).square().sum(1)

    models = []
    for reused in (False, True):
        models.append(model := still(small_net()))
        net, memory = PlainNet(model, sgd(model)), dict[str, Tensor]()
        for part in batch_of(0).parts(2):
            net.part_weight, net.accumulating = 0.5, int(part.ids[0]) == int(batch_of(0).ids[0])
            awp = AWP(Distilled(ball=BALL, reused=reused), gamma=0.1)
            awp.step(net, part, U, generator(0), memory)
    assert equal(*models)


def test_fields_that_count_epochs_keep_their_share_of_the_run() -> None:
    assert NuAT(ball=BALL, rise=90).stretched(0.1).rise == 9
    assert NuAT(ball=BALL, rise=90).stretched(0.01).rise == 0
    assert NuAT(ball=BALL, rise=0).stretched(0.1).rise == 0
    assert ATTA(ball=BALL, early_epochs=5).stretched(2.0).early_epochs == 10
    fat = FAT(ball=BALL, tau=((0, 0), (50, 1), (90, 2)))
    assert fat.stretched(0.1).tau == ((0, 0), (5, 1), (9, 2))
    assert fat.stretched(0.001).tau == ((0, 2),)
    awp = AWP(NuAT(ball=BALL, rise=90), gamma=0.01, warmup=10)
    assert awp.stretched(0.25) == AWP(NuAT(ball=BALL, rise=22), gamma=0.01, warmup=2)
    assert PGD(ball=BALL).stretched(0.5) == PGD(ball=BALL)


def test_fat_with_patience_is_pgd() -> None:
    assert both(FAT(ball=BALL, tau=((0, K),), omega=0.0), PGD(ball=BALL))


def test_dat_without_a_stop_is_pgd() -> None:
    assert both(DAT(ball=BALL, c_max=0.0), PGD(ball=BALL))


def test_fast_is_one_step_pgd() -> None:
    assert both(Fast(ball=BALL), PGD(ball=BALL), Control(1, 0.125))


def test_atta_that_resets_every_epoch_is_pgd_from_its_own_start() -> None:
    class FromNoise(PGD):
        def step(
            self, net: Any, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
        ) -> None:
            region = self.ball.around(batch.x)
            x_adv = region.project(batch.x + 0.001 * torch.randn(batch.x.shape, generator=rng))
            for _ in range(u.steps):
                x_adv = region.project(
                    region.ascend(x_adv, net.input_grad(x_adv, batch.y), u.step_size)
                )
            net.backward(x_adv, batch.y)
            net.apply()

    assert both(ATTA(ball=BALL, reset=1), FromNoise(ball=BALL))


def test_free_with_one_replay_and_no_step_is_erm_on_the_carried_noise() -> None:
    model, twin = still(small_net()), still(small_net())
    carried = EPS * (2 * torch.rand(N, 1, 6, 6, generator=generator(3)) - 1)
    net, plain = PlainNet(model, sgd(model)), PlainNet(twin, sgd(twin))
    memory: Memory = {"noise": carried.clone()}
    for index in range(3):
        b = batch_of(index)
        Free(ball=BALL).step(net, b, Control(1, 0.0), generator(0), memory)
        ERM(ball=BALL).step(plain, b._replace(x=(b.x + carried).clamp(0, 1)), U, generator(0), {})
    assert equal(model, twin)
    assert torch.equal(memory["noise"], carried)


def test_yopo_behind_an_identity_is_accumulated_pgd() -> None:
    def net() -> nn.Module:
        return still(nn.Sequential(nn.Identity(), *small_net()))

    class Accumulated(PGD):
        def step(
            self, net: Any, batch: Batch, u: Control, rng: torch.Generator, memory: Memory
        ) -> None:
            region = self.ball.around(batch.x)
            x_adv = region.start(rng)
            for _ in range(u.steps):
                g = net.backward(x_adv, batch.y, wrt_input=True)
                x_adv = region.project(region.ascend(x_adv, g, u.step_size))
            net.apply()

    assert both(YOPO(ball=BALL, inner=1), Accumulated(ball=BALL), net=net)


@pytest.mark.parametrize("m", [1, 3, 4])
@pytest.mark.parametrize("ball", [Linf(EPS), L2(0.3)])
@pytest.mark.parametrize("layer_one", ["paper", "reference"])
def test_the_mean_over_m_passes_is_their_sum_with_another_learning_rate(
    layer_one: Any, ball: Any, m: int
) -> None:
    """Learning rate m lr and a weight decay of 1/m. The images are the same, because ascent steps
    do not depend on the length of the co-state."""
    nets = []
    for average, factor in ((False, 1), (True, m)):
        model = still(small_net()).double()
        options: Any = {"lr": 0.02 * factor, "momentum": 0.9, "weight_decay": 1e-3 / factor}
        net = PlainNet(model, torch.optim.SGD(model.parameters(), **options), first_layer="0")
        method = YOPO(ball=ball, inner=2, layer_one=layer_one, pass_average=average)
        for index in range(BATCHES):
            b = batch_of(index)
            b = b._replace(x=b.x.double())
            method.step(net, b, Control(m, 0.05), generator(0, index, "method"), {})
        nets.append(model)
    for a, b in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)


PUBLISHED: dict[str, dict[str, Any]] = {
    "nfgsm": {"noise": 2.0},
    "yopo": {"inner": 10},
    "atta": {"reset": 10},
    "dat": {"c_max": 0.5},
    "trades": {"beta": 6.0, "noise": 0.001},
    "mart": {"beta": 5.0, "noise": 0.001},
    "nuat": {"weight": 4.5, "rise": 90, "noise": 0.5},
    "fgsm-pgi": {"weight": 10.0, "momentum": 0.3, "reset": 40},
}
"""The settings of the papers or of their code for CIFAR-10."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_settings(name: str) -> None:
    method = METHODS[name](ball=BALL)
    assert {key: getattr(method, key) for key in PUBLISHED[name]} == PUBLISHED[name]


def test_recipes_that_anneal_yopo_end_with_the_update_of_the_constant_recipe() -> None:
    from amata import recipes

    found = {name: recipes.load(name) for name in recipes.built_in()}
    yopo = {name: r for name, r in found.items() if isinstance(r.method, YOPO)}
    averaging = {name for name, r in yopo.items() if r.method.pass_average}  # type: ignore[attr-defined]
    assert averaging == {name for name, r in yopo.items() if not isinstance(r.schedule, Constant)}
    assert averaging == {"mnist-amata-yopo", "mnist5k-amata-yopo"}
    for *pair, tolerance in (
        ("mnist-amata-yopo", "mnist-yopo-5-10", 1e-6),
        # Adam magnifies the rounding of gradients that are zero: a bias in front of BatchNorm
        ("mnist5k-amata-yopo", "mnist5k-yopo", 0.01),
    ):
        nets = []
        for recipe in (found[str(name)] for name in pair):
            model = still(small_net()).double()
            net = PlainNet(model, make_optimizer(model, recipe.optim), first_layer="0")
            for index in range(3):
                b = batch_of(index)
                b = b._replace(x=b.x.double())
                recipe.method.step(net, b, Control(5, 0.01), generator(index), {})
            nets.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        start = torch.cat([p.detach().flatten() for p in small_net().double().parameters()])
        assert (nets[0] - nets[1]).norm() < float(tolerance) * (nets[1] - start).norm(), pair


@pytest.mark.parametrize("weak", ["fixed", "skip"])
def test_fasts_weak_stage(weak: Any) -> None:
    model = still(small_net())
    method = Fast(ball=BALL, weak=weak)
    net, memory = train(method, model, Control(0, 0.125))
    assert memory["fixed"].shape == (1, 1, 6, 6)
    assert 0 < float(memory["fixed"].abs().max()) <= EPS
    assert net.grad_evals == BATCHES * N * (2 if weak == "fixed" else 1)


@pytest.mark.parametrize("init", ["random", "zero", "previous", "fixed"])
def test_fasts_starts(init: Any) -> None:
    seen: list[Tensor] = []

    class Watch(PlainNet):
        def ascent(
            self, region: Region, x: Tensor, y: Tensor, steps: int, step_size: float, **options: Any
        ) -> Tensor:
            seen.append(x.clone())
            return super().ascent(region, x, y, steps, step_size, **options)

    model = small_net()
    net, memory = Watch(model, sgd(model)), Memory()
    b = batch_of(0)
    for index in range(2):
        Fast(ball=BALL, init=init).step(net, b, Control(1, 0.125), generator(index), memory)
    moved = [s - b.x for s in seen]
    if init == "zero":
        assert not moved[0].any()
        assert not moved[1].any()
    elif init == "random":
        assert not torch.equal(moved[0], moved[1])
    elif init == "previous":
        assert not moved[0].any()
        assert moved[1].any()
    else:
        assert moved[0].any()
        assert torch.equal(moved[0], moved[1])
    assert float(torch.stack(moved).abs().max()) <= EPS + 1e-6


def test_attas_reference_loss_is_divided_by_the_whole_batch() -> None:
    """Also where the batch comes in parts."""
    scales: list[float] = []

    class Watch(PlainNet):
        def backward(self, x: Any, y: Tensor, **options: Any) -> Tensor | None:
            scales.append(options["scale"])
            return super().backward(x, y, **options)

    model = small_net()
    net, memory = Watch(model, sgd(model)), Memory()
    for part in batch_of(0).parts(2):
        rng = generator(0)
        ATTA(ball=BALL, loss_scale="reference").step(net, part, U, rng, memory)
    assert scales == [1 / N, 1 / N]


def test_frees_noise_grows_with_zero_rows_after_a_short_first_batch() -> None:
    model, other = small_net(), small_net()
    net, memory = PlainNet(model, sgd(model)), Memory()
    scene = Scene(other)
    scene.kept["noise"] = torch.zeros(N, 1, 6, 6)
    for index, size in enumerate((2, N, 4)):
        batch = batch_of(0)
        batch = batch._replace(x=batch.x[:size], y=batch.y[:size], ids=batch.ids[:size])
        torch.manual_seed(index)
        Free(ball=BALL).step(net, batch, U, generator(index), memory)
        torch.manual_seed(index)
        noise = scene.kept["noise"]
        scene.kept["noise"] = noise[:size].clone()
        oracle_free(scene, batch, generator(index))
        scene.kept["noise"] = torch.cat([scene.kept["noise"], noise[size:]])
        assert len(memory["noise"]) == (2 if size == 2 else N)
        torch.testing.assert_close(memory["noise"], scene.kept["noise"][: len(memory["noise"])])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_attas_amata_resets_often_at_first() -> None:
    method = ATTA(ball=BALL, reset=10, early_reset=2, early_epochs=5)
    model = small_net()
    net, memory = PlainNet(model, sgd(model)), Memory()
    resets = []
    for epoch in range(21):
        half = batch_of(0)._replace(epoch=epoch)
        if epoch:
            memory["fresh"].fill_(False)
        method.step(net, half, Control(0, 0.0), generator(epoch), memory)
        if epoch and bool(memory["fresh"].any()):
            resets.append(epoch + 1)
    assert resets == [2, 4, 10, 20]


def test_fgsm_pgi_without_steps_trains_on_the_stored_perturbation() -> None:
    """One pass; the prior stays for the next visit. Its label smoothing is the run's."""
    model, twin = still(small_net()), still(small_net())
    u, loss, b = Control(0, 0.1), smooth_ce(0.3), batch_of(0)
    net, other = (PlainNet(m, sgd(m), loss=loss) for m in (model, twin))
    memory: Memory = {}
    FGSMPGI(ball=BALL).step(net, b, u, generator(0), memory)
    assert b.frame is not None
    delta = b.frame.cut(memory["store"], b.ids)
    assert not memory["momentum"].any()
    assert float(delta.abs().max()) == pytest.approx(EPS)
    ERM(ball=BALL).step(other, b._replace(x=b.x + delta), u, generator(0), {})
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert net.grad_evals == N == N * planned_evals(FGSMPGI(ball=BALL), u).evals
    net.backward((b.x, b.x), b.y, loss=pgi_loss(net.loss, 10.0))
    expected = F.cross_entropy(model.train()(b.x), b.y, label_smoothing=0.3)
    assert float(net.last_loss) == pytest.approx(float(expected.detach()))  # type: ignore[arg-type]


def test_a_frame_is_inverted_exactly() -> None:
    x = images(5, side=7)
    padded = torch.nn.functional.pad(x, [2] * 4)
    _, frame = crop_flip(x, generator(0), pad=2)
    assert isinstance(frame, Frame)
    window = torch.rand(5, 1, 7, 7)
    back, mask = padded.clone(), torch.zeros_like(padded)
    frame.paste_(back, window)
    frame.paste_(mask, torch.ones_like(window))
    assert torch.equal(frame.cut(back), window)
    assert torch.equal(back[mask == 0], padded[mask == 0])
    store, ids = torch.zeros(9, *padded.shape[1:]), torch.tensor([7, 0, 3, 8, 1])
    frame.paste_(store, window, ids)
    assert torch.equal(frame.cut(store, ids), window)
    assert torch.equal(frame.cut(store[ids]), window)
    assert not store[[2, 4, 5, 6]].any()


def test_a_first_layer_may_be_followed_by_work_in_place_and_may_have_no_weights() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 16, 4)
    )
    bare = nn.Sequential(nn.Identity(), *copy.deepcopy(model))
    before = [p.clone() for p in model.parameters()]
    for net in (model, bare):
        YOPO(ball=BALL, inner=2, layer_one="reference").step(
            PlainNet(net, sgd(net), first_layer="0"), batch_of(0), U, generator(0), {}
        )
        assert all(not torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def test_methods_refuse_what_they_cannot_train_on() -> None:
    from amata.errors import InputError

    data = images(8), labels(8)
    for method, train_on, message in (
        ("atta", [data], "atta stores a perturbation per sample and needs data in memory"),
        ("fgsm-pgi", [data], "fgsm-pgi stores a perturbation per sample and needs data in memory"),
        ("free", data, "does not update the weights"),
    ):
        overrides = [
            f"method.name={method}",
            "schedule.name=constant",
            "schedule.steps=0",
            "schedule.step_size=0",
            "train.device=cpu",
        ]
        with pytest.raises(InputError, match=message):
            fit(small_net(), train_on, None, recipes.load("mnist5k-amata", overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["method.name=yopo", "schedule.name=constant", "schedule.steps=0"],
            "with 0 steps, as in epoch 1, yopo does not update the weights; raise K",
        ),
        (
            ["method.name=free", "schedule.name=piecewise", "schedule.stages=[[0, 2], [3, 0]]"],
            "with 0 steps, as in epoch 4, free does not update the weights",
        ),
        (
            ["method.name=trades", "optim.label_smoothing=0.1"],
            "trades trains on a loss of its own, without label smoothing; set optim.label_smooth",
        ),
        (
            ["train.epochs=3", "method.awp.gamma=0.01", "method.awp.warmup=3"],
            "method.awp.warmup = 3 leaves none of the 3 epochs with AWP; set it to 2, or train lon",
        ),
        (
            ["train.epochs=3", "train.eps_warmup=2.5"],
            "train.eps_warmup = 2.5 leaves none of the 3 epochs with the full eps; set it to 2,",
        ),
        (["model.new_head=true"], "set model.weights=PATH to a weights file or a run folder"),
    ],
)
def test_settings_without_effect_are_refused_before_training(
    overrides: list[str], message: str
) -> None:
    from amata.errors import InputError

    named = any("schedule.name" in o for o in overrides)
    size = "schedule.step_size=0.1" if "schedule.name=constant" in overrides else "schedule.tau=0.1"
    recipe = recipes.load("mnist5k-amata", [*overrides, *([size] if named else [])])
    with pytest.raises(InputError, match=message):
        fit(small_net(), (images(8), labels(8)), None, recipe)


def test_a_first_layer_that_is_not_there_is_named() -> None:
    from amata.errors import InputError

    model = small_net()
    for name, message in ((None, "set model.first_layer"), ("conv", "'conv' is not a module")):
        with pytest.raises(InputError, match=message):
            PlainNet(model, sgd(model), first_layer=name).costate(images(), labels(), first=False)


def test_fosc_is_zero_exactly_at_the_worst_case_of_a_linear_loss() -> None:
    x, g = images(low=0.4, high=0.6), torch.randn(6, 1, 6, 6, generator=generator(0))
    for ball, worst in (
        (Linf(0.1), x + 0.1 * g.sign()),
        (L2(0.1), x + 0.1 * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)),
    ):
        torch.testing.assert_close(ball.fosc(worst, x, g), torch.zeros(6), atol=1e-5, rtol=0)
        assert (ball.fosc(x, x, g) > 0.1).all()


def test_dats_feasible_gap_stops_samples_that_fosc_keeps() -> None:
    """A linear loss on black and white images: one step reaches the maximum, which FOSC misses."""
    cost = []
    for criterion in ("fosc", "feasible"):
        # Of two classes: the gradient keeps its direction, so its signs cannot change on the way.
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
        net = PlainNet(model, sgd(model))
        b = batch_of(0)._replace(x=images(N).double().round(), y=labels(N) % 2)
        method = DAT(ball=BALL, c_max=0, criterion=criterion)
        method.step(net, b, Control(5, 2 * EPS), generator(0), {})
        cost.append(net.grad_evals)
    # a first step, a look that stops all, and the update; without a stop K + 1
    assert cost == [6 * N, 3 * N]


def test_dats_feasible_gap_has_no_other_centre() -> None:
    from amata.errors import InputError

    with pytest.raises(InputError, match='centre = "start" applies to FOSC'):
        DAT(ball=BALL, centre="start", criterion="feasible")


def test_equal_bounds_train_bit_for_bit_like_a_constant() -> None:
    tau = 0.15
    nets = []
    for schedule in (Linear(k_min=3, k_max=3, tau=tau), Constant(steps=3, step_size=tau / 3)):
        model = small_net()
        for epoch in range(3):
            train(PGD(ball=Linf(EPS)), model, schedule(epoch, 3).for_batch(0))
        nets.append(model)
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_without_steps_trains_on_its_start(random_start: bool) -> None:
    """Without a random start that is ERM; with one, as if a step had no length."""
    a, b = small_net(), small_net()
    pgd = PGD(ball=Linf(EPS), random_start=random_start)
    net, _ = train(pgd, a, Control(0, 0.1))
    other, _ = train(pgd, b, Control(1, 0.0)) if random_start else train(ERM(ball=Linf(EPS)), b)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert net.grad_evals == other.grad_evals / (2 if random_start else 1)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_attack_mode_sets_batchnorm_and_dropout(mode: Any) -> None:
    model = small_net()
    seen: list[bool] = []
    model[3].register_forward_pre_hook(lambda module, _: seen.append(module.training))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    net = PlainNet(model, sgd(model), attack_mode=mode)
    x, y = images(), labels()
    torch.manual_seed(0)
    g = net.input_grad(x, y)
    assert seen == [mode == "train"]
    assert torch.equal(norm.running_mean, before) == (mode == "eval")
    assert all(p.grad is None for p in model.parameters()), "an attack left weight gradients"
    reference = copy.deepcopy(model).train(mode == "train")
    torch.manual_seed(0)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(reference(leaf), y, reduction="sum"), leaf)
    torch.testing.assert_close(g, expected)
    seen.clear()
    net.backward(x, y)
    assert seen == [True], "weights are always trained in train mode"


def test_backward_accumulates_and_returns_the_input_gradient_when_asked() -> None:
    model = small_net(smooth=True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    net = PlainNet(model, sgd(model), loss=smooth_ce(0.1))
    x, y = images(), labels()
    assert net.backward(x, y) is None
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    g = net.backward(x, y, wrt_input=True)
    leaf = x.clone().requires_grad_()
    loss = F.cross_entropy(model(leaf), y, label_smoothing=0.1)
    (expected,) = torch.autograd.grad(loss, leaf)
    assert g is not None
    torch.testing.assert_close(g, expected)
    for p, first in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * first)
    assert net.last_loss is not None
    torch.testing.assert_close(net.last_loss, 2 * loss.detach(), msg="both passes are one update")
    net.apply()
    net.backward(x, y)
    assert float(net.last_loss) < 1.5 * float(loss.detach()), (
        "an update begins with a loss of its own"
    )


@pytest.mark.parametrize("gamma", [0.0, 1e-6])
@pytest.mark.parametrize("engine", [PlainNet, FastNet])
def test_the_reported_loss_weighs_passes_as_the_update_does(
    engine: type[PlainNet], gamma: float
) -> None:
    """Half of one pass and half of another is their mean, also with awp."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    net, b = engine(model, sgd(model), precision="fp32"), batch_of(0)
    expected = float(F.cross_entropy(model(b.x), b.y).detach())
    with net.perturbed(gamma) if gamma else nullcontext():
        for _ in range(2):
            net.backward(b.x, b.y, scale=0.5)
        net.apply()
    assert net.last_loss is not None
    assert float(net.last_loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("engine", [PlainNet, FastNet])
def test_the_clean_term_is_part_of_the_reported_loss(engine: type[PlainNet]) -> None:
    """From the image itself and without steps both terms are the clean loss."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    b = batch_of(0)
    expected = 2 * float(F.cross_entropy(model(b.x), b.y).detach())
    net = engine(model, sgd(model), precision="fp32")
    method = PGD(ball=BALL, clean_term=True, random_start=False)
    for _ in range(2):
        method.step(net, b, Control(0, 0.1), generator(0), {})
        assert net.last_loss is not None
        assert float(net.last_loss) == pytest.approx(expected)
        expected = 2 * float(F.cross_entropy(model(b.x), b.y).detach())


class CalledTwice(nn.Module):
    """Its convolution runs twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.conv(self.conv(x)).flatten(1))
        return z


@pytest.mark.parametrize("engine", [PlainNet, FastNet])
def test_a_first_layer_that_cannot_be_split_off_is_named(engine: type[PlainNet]) -> None:
    from amata.errors import InputError

    in_place = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 4))
    for model, name, message in (
        (CalledTwice(), "conv", "the first layer of CalledTwice is called more than once"),
        (in_place, "0", "the first layer of Sequential changes the images in place"),
    ):
        net = engine(model, sgd(model), first_layer=name, precision="fp32")
        with pytest.raises(InputError, match=message):
            YOPO(ball=BALL, inner=1).step(net, batch_of(0), U, generator(0), {})
    model = CalledTwice()
    net = engine(model, sgd(model), first_layer="fc", precision="fp32")
    YOPO(ball=BALL, inner=1).step(net, batch_of(0), U, generator(0), {})


@pytest.mark.parametrize("warmup", [0, 4, 9])
def test_the_weight_average_follows_its_formula(warmup: int) -> None:
    model = nn.BatchNorm1d(2)
    average = EMA(model, 0.5, warmup)
    expected = model.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            model.weight.add_(1)
            model.state_dict()["num_batches_tracked"].add_(1)
        average.update()
        decay = min(0.5, (1 + step) / (1 + step + warmup))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.model.weight, expected)
    assert int(average.model.num_batches_tracked) == 20  # type: ignore[arg-type]
    assert not average.model.weight.requires_grad


# --- the cost that is known before training
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipes.built_in())
def test_a_recipes_planned_cost_is_what_its_training_spends(name: str) -> None:
    """Through the trainer, for a few epochs. Where samples stop early the plan is the most. `fast`
    with a fixed weak start was planned as if K = 0 took one pass: 1.65 where 2 are spent."""
    options = ["train.device=cpu", "data.batch_size=4", "data.augment=none", "train.guard=ignore"]
    options += ["train.eps_warmup=0", "train.accumulate=1", "model.first_layer='0'"]
    options += ["model.new_head=false"]
    recipe = recipes.load(name, [*options, "optim.lr=1e-3", "train.precision=fp32"])
    epochs = min(recipe.train.epochs, 3)
    schedule = recipe.schedule
    if isinstance(schedule, Adaptive):  # its budget is too small for probes of two batches
        schedule = replace(schedule, budget=None, gamma=0.04)
    short = recipe.train.model_copy(update={"epochs": epochs})
    recipe = replace(recipe, train=short, schedule=schedule)
    fitted = fit(small_net(), (images(8), labels(8)), None, recipe)
    controls = planned_controls(schedule, epochs)
    taken = controls or [Control(row["steps"], 0.1) for row in fitted.epochs]
    plan = [  # of the two batches of each epoch, which take whole numbers of steps
        planned_evals(recipe.method, u.for_batch(2 * epoch + i), epoch)
        for epoch, u in enumerate(taken)
        for i in range(2)
    ]
    planned, spent = 4 * sum(p.evals for p in plan), fitted.grad_evals
    if isinstance(schedule, Adaptive):
        spent -= fitted.epochs[-1]["probe_evals"]
    if all(p.exact for p in plan):
        assert spent == planned
    else:
        assert isinstance(recipe.method, FAT | DAT)
        assert 8 * 2 * epochs <= spent <= planned


def test_the_weak_start_of_fast_costs_two_passes() -> None:
    plan = planned_controls(recipes.load("mnist5k-amata-fast").schedule, 20) or []
    for weak, cost in (("fixed", 2.0), ("skip", 1.65)):
        method = Fast(ball=BALL, weak=weak)  # type: ignore[arg-type]
        assert sum(planned_evals(method, u).evals for u in plan) / 20 == pytest.approx(cost)
