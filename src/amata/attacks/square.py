"""Square Attack (Andriushchenko et al. 2020, arXiv 1912.00049): random search without gradients.

Each query changes a square of the perturbation at a random place and keeps the change if it lowers
the margin z_y - max_{i != y} z_i. The squares get smaller on a fixed schedule.

In L-inf a square has one sign per channel, at the surface of the ball. In L2 it gets two bumps of
opposite sign, and the norm that a second square gives up. As in the authors' code all images of a
batch share the places, and in L-inf the signs.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.attacks.randomness import generator_on
from amata.attacks.survivors import Found, Working, choose, per_image
from amata.errors import InputError
from amata.losses import finite, margin
from amata.threat import Ball

SHARE = 0.8
"""The share of the pixels in the first squares."""
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries after which the share halves."""
CHECK = 50
"""Queries between two counts of the images that are left."""


@dataclass
class _Search(Working):
    point: Tensor
    """The best image so far."""
    lead: Tensor
    """Its margin."""


def square(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    rng: torch.Generator,
    found: Found,
    queries: int = 5000,
) -> None:
    """Square Attack on the images that are not broken yet, written into `found`."""
    if x.dim() != 4:
        raise InputError(f"Square needs images of shape (N, C, H, W), not {tuple(x.shape)}")
    left = found.left()
    if len(left) == 0:
        return
    w = found.working(left, x, y)
    host = generator_on(torch.device("cpu"), rng)
    start = _stripes if ball.norm == "linf" else _tiles
    noise = start(x, len(left), ball.eps, rng, host)
    propose = (_Linf if ball.norm == "linf" else _L2)(ball, x, queries, rng, host)
    order = torch.arange(len(w.row), device=x.device) % len(left)
    s = _Search(**vars(w), point=(w.x + noise[order]).clamp(0, 1), lead=w.x.new_zeros(len(w.row)))
    s.lead = s.lead + torch.inf
    with torch.no_grad():
        _query(model, s, s.point)
        for i in range(queries):
            share = SHARE / 2 ** bisect_left(HALVINGS, i)
            _query(model, s, propose(s, i, share))
            if i % CHECK == CHECK - 1 or i in (0, 9):
                shrunk = found.shrink(s)
                if shrunk is None:
                    return
                s = shrunk
    found.keep(s)


def _query(model: nn.Module, s: _Search, point: Tensor) -> None:
    """Ask the model, and keep the points that lower the margin of images that are not broken."""
    z = model(point)
    lead = -margin(z, s.y)
    wrong = (z.argmax(1) != s.y) | ~finite(z)
    take = ((lead < s.lead) | wrong) & ~s.broken
    s.point, s.lead = choose(take, point, s.point), torch.where(take, lead, s.lead)
    s.x_adv = choose(wrong & ~s.broken, point, s.x_adv)
    s.broken = s.broken | wrong


def _integer(below: int, rng: torch.Generator) -> int:
    return int(below * torch.rand(1, generator=rng))


def _signs(shape: tuple[int, ...], rng: torch.Generator, x: Tensor) -> Tensor:
    noise = torch.rand(shape, generator=rng, device=rng.device)
    return (2 * noise - 1).sign().to(x.device, x.dtype, non_blocking=True)


def _side(share: float, x: Tensor, least: int, *, odd: bool) -> int:
    height, width = x.shape[2:]
    side = max(round(math.sqrt(share * height * width)), least)
    return min(side + 1 if odd and side % 2 == 0 else side, height, width)


def _stripes(x: Tensor, n: int, eps: float, rng: torch.Generator, host: torch.Generator) -> Tensor:
    """Vertical stripes."""
    return eps * _signs((n, x.shape[1], 1, x.shape[3]), rng, x)


class _Linf:
    """The proposals in L-inf. All places and signs are drawn at once."""

    def __init__(
        self, ball: Ball, x: Tensor, queries: int, rng: torch.Generator, host: torch.Generator
    ) -> None:
        noise = torch.rand(queries, 2 + x.shape[1], generator=host)
        self.places: list[list[float]] = noise[:, :2].tolist()
        self.steps = 2 * ball.eps * (2 * noise[:, 2:, None, None] - 1).sign().to(x.device, x.dtype)
        self.ball, self.region = ball, ball.around(x)
        self.x = x

    def __call__(self, s: _Search, query: int, share: float) -> Tensor:
        if s.x is not self.x:
            self.x, self.region = s.x, self.ball.around(s.x)
        side = _side(share, s.x, 1, odd=False)
        top, left = (
            int((size - side) * u)
            for size, u in zip(s.x.shape[2:], self.places[query], strict=True)
        )
        point = s.point.clone()
        point[:, :, top : top + side, left : left + side] += self.steps[query]
        return self.region.project(point)


def _tiles(x: Tensor, n: int, eps: float, rng: torch.Generator, host: torch.Generator) -> Tensor:
    """A grid of bumps with random signs."""
    height, width = x.shape[2:]
    side = max(height // 5, 1)
    first = max(height - 5 * side, 0) // 2
    delta = x.new_zeros((n, *x.shape[1:]))
    for top in range(first, height - side + 1, side):
        for left in range(first, width - side + 1, side):
            bump = _bumps(side, host).to(x.device, x.dtype)
            signs = _signs((n, x.shape[1], 1, 1), rng, x)
            delta[:, :, top : top + side, left : left + side] += bump * signs
    return eps * _unit(delta)


def _unit(delta: Tensor) -> Tensor:
    return delta / (per_image(delta.flatten(1).norm(dim=1), delta) + 1e-12)


def _norm(window: Tensor) -> Tensor:
    """Of each image and channel."""
    return window.square().sum((2, 3), keepdim=True).sqrt()


class _L2:
    """The proposals in L2. They remember their bumps on the device."""

    def __init__(
        self, ball: Ball, x: Tensor, queries: int, rng: torch.Generator, host: torch.Generator
    ) -> None:
        self.ball, self.rng, self.host = ball, rng, host
        self.bumps: dict[int, Tensor] = {}

    def __call__(self, s: _Search, query: int, share: float) -> Tensor:
        ball, rng, host = self.ball, self.rng, self.host
        side = _side(share, s.x, 3, odd=True)
        n, channels, height, width = s.x.shape
        if side not in self.bumps:
            self.bumps[side] = _two_bumps(side).to(s.x.device, s.x.dtype)
        places = [(_integer(height - side, host), _integer(width - side, host)) for _ in range(2)]
        taken, given = (
            (slice(None), slice(None), slice(top, top + side), slice(left, left + side))
            for top, left in places
        )
        delta = s.point - s.x
        rest = delta.clone()
        rest[taken] = 0
        rest[given] = 0
        freed = _norm(delta - rest)
        old = delta[taken] / (_norm(delta[taken]) + 1e-12)
        new = _turned(self.bumps[side], host) * _signs((n, channels, 1, 1), rng, s.x) + old
        unused = (ball.eps**2 - delta.flatten(1).square().sum(1)).clamp_min(0)
        budget = (per_image(unused, delta) / channels + freed.square()).sqrt()
        rest[taken] = new / (_norm(new) + 1e-12) * budget
        return (s.x + ball.eps * _unit(rest)).clamp(0, 1)


def _bumps(side: int, host: torch.Generator) -> Tensor:
    return _turned(_two_bumps(side), host)


def _turned(bumps: Tensor, host: torch.Generator) -> Tensor:
    """Side by side or one above the other."""
    return bumps.T if float(torch.rand(1, generator=host)) > 0.5 else bumps


def _two_bumps(side: int) -> Tensor:
    """A positive bump above a negative one, of norm 1."""
    upper = side // 2
    both = torch.cat([_bump(upper, side), -_bump(side - upper, side)])
    return both / both.norm()


def _bump(height: int, width: int) -> Tensor:
    """Rings of 1, 1/4, 1/9, ... added up around the centre, of norm 1."""
    if height == 0:
        return torch.zeros(0, width)
    bump = torch.zeros(height, width)
    top, left = height // 2, width // 2
    for ring in range(max(top, left) + 1):
        rows = slice(max(top - ring, 0), min(top + ring + 1, height))
        columns = slice(max(left - ring, 0), min(left + ring + 1, width))
        bump[rows, columns] += 1 / (ring + 1) ** 2
    return bump / bump.norm()
