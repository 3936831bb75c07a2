"""Threat models: the sets of images an adversary may choose from.

`Linf(8 / 255)` is a ball. `ball.around(x)` is its feasible set for a batch of images in [0, 1]. It
has the three operations of every inner maximisation: `start`, `ascend` and `project`.
`feasible_gap` says how far an image is from the maximum of the linearised loss.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from amata.errors import InputError
from amata.quantity import in_pixels, positive
from amata.seeds import Rows, draw


class Region(Protocol):
    """The feasible set around one batch of images."""

    def start(self, rng: torch.Generator, rows: Rows | None = None) -> Tensor:
        """A random feasible point. `rows`: which rows of a larger batch these images are."""
        ...

    def ascend(self, x_adv: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
        """One ascent step of length alpha (in the ball's norm) along the gradient g, without
        projection."""
        ...

    def project(self, x_adv: Tensor) -> Tensor:
        """Project x_adv into the ball, then into [0, 1]. The result is feasible. In L-inf it is the
        nearest feasible point; in L2 there may be a nearer one, as in the usual implementations."""
        ...

    def maximiser(self, g: Tensor) -> Tensor:
        """The feasible point with the largest inner product with g."""
        ...


class Ball(Protocol):
    """A threat model of radius eps."""

    norm: ClassVar[str]

    @property
    def eps(self) -> float: ...

    def around(self, x: Tensor) -> Region:
        """The feasible set of the batch x."""
        ...

    def scaled(self, factor: float) -> "Ball":
        """The ball with `factor` times the radius."""
        ...

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Each sample's distance in the ball's norm."""
        ...

    def direction(self, g: Tensor) -> Tensor:
        """Steepest ascent: the vector of length one, in the ball's norm, with the largest inner
        product with g."""
        ...

    def limit(self, delta: Tensor) -> Tensor:
        """Project perturbations into the ball, ignoring [0, 1]."""
        ...

    def fosc(self, x_adv: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """Each sample's first-order stationary condition eps |g|_dual - <x_adv - x, g>: the most
        that a move in the ball could increase the linearised loss, ignoring [0, 1]. Where the best
        move leaves [0, 1], it stays above 0 at the maximiser; `feasible_gap` does not."""
        ...


def feasible_gap(region: Region, x_adv: Tensor, g: Tensor) -> Tensor:
    """Each sample's max over x' in the region of <x' - x_adv, g>: the most that a feasible move can
    increase the linearised loss (the Frank-Wolfe gap). For feasible images it is at least 0, 0
    exactly at the maximisers of the linearised loss, and at most FOSC."""
    return ((region.maximiser(g) - x_adv) * g).flatten(1).sum(1)


def check_ball(ball: object) -> None:
    """Raise InputError for a bare number, which has no norm, or a class without a radius."""
    if isinstance(ball, type) or not hasattr(ball, "around"):
        raise InputError(
            f"ball = {ball!r} is not a threat model; write amata.Linf(8 / 255) or amata.L2(0.5)"
        )


@dataclass(frozen=True)
class Linf:
    """{x' in [0, 1] : max_i |x'_i - x_i| <= eps}. Steps follow the sign of the gradient."""

    norm: ClassVar[str] = "linf"
    eps: float
    """The radius, for images in [0, 1]."""

    if TYPE_CHECKING:  # fractions such as "8/255" are read as numbers

        def __init__(self, eps: float | str) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", in_pixels(self.eps, "eps"))

    def scaled(self, factor: float) -> "Linf":
        return Linf(factor * self.eps)

    def around(self, x: Tensor) -> "LinfRegion":
        return LinfRegion(self, x, (x - self.eps).clamp(0, 1), (x + self.eps).clamp(0, 1))

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).flatten(1).abs().amax(1)

    def direction(self, g: Tensor) -> Tensor:
        return g.sign()

    def limit(self, delta: Tensor) -> Tensor:
        return delta.clamp(-self.eps, self.eps)

    def fosc(self, x_adv: Tensor, x: Tensor, g: Tensor) -> Tensor:
        return self.eps * g.flatten(1).abs().sum(1) - ((x_adv - x) * g).flatten(1).sum(1)


@dataclass(frozen=True)
class LinfRegion:
    ball: Linf
    x: Tensor
    low: Tensor
    high: Tensor

    def start(self, rng: torch.Generator, rows: Rows | None = None) -> Tensor:
        noise = draw(torch.rand, rng, self.x.shape, self.x.device, self.x.dtype, rows=rows)
        return self.project(self.x + self.ball.eps * (2 * noise - 1))

    def ascend(self, x_adv: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
        return x_adv + alpha * self.ball.direction(g)

    def project(self, x_adv: Tensor) -> Tensor:
        # The ball and [0, 1] are boxes, so their intersection is a box and one clamp projects.
        return torch.clamp(x_adv, self.low, self.high)

    def maximiser(self, g: Tensor) -> Tensor:
        return torch.where(g > 0, self.high, self.low)


def _per_sample_norm(v: Tensor) -> Tensor:
    """|v|_2 of each sample, shaped to broadcast over v. It is never zero and can be a divisor."""
    least = max(1e-12, torch.finfo(v.dtype).tiny)  # 1e-12 is 0 in half precision
    return v.flatten(1).norm(dim=1).clamp_min(least).view(-1, *[1] * (v.dim() - 1))


def _shortened(delta: Tensor, eps: float | Tensor) -> Tensor:
    """Each sample shortened to |delta|_2 <= eps."""
    return delta * (_per_sample_norm(delta).reciprocal() * eps).clamp_max(1)


@dataclass(frozen=True)
class L2:
    """{x' in [0, 1] : |x' - x|_2 <= eps}. Steps follow the normalised gradient."""

    norm: ClassVar[str] = "l2"
    eps: float
    """The radius, for images in [0, 1]."""

    if TYPE_CHECKING:  # fractions such as "8/255" are read as numbers

        def __init__(self, eps: float | str) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", positive(self.eps, "eps"))

    def scaled(self, factor: float) -> "L2":
        return L2(factor * self.eps)

    def around(self, x: Tensor) -> "L2Region":
        exact = torch.promote_types(x.dtype, torch.float32)
        return L2Region(self, x, x.new_full((), self.eps, dtype=exact))

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).flatten(1).norm(dim=1)

    def direction(self, g: Tensor) -> Tensor:
        # NaN and infinite entries have no direction; the sign of NaN is 0 too. Divide by the
        # largest entry first, so that tiny gradients keep their direction.
        g = torch.nan_to_num(g, 0.0, 0.0, 0.0)
        g = g / g.flatten(1).abs().amax(1).clamp_min(torch.finfo(g.dtype).tiny).view(
            -1, *[1] * (g.dim() - 1)
        )
        return g / _per_sample_norm(g)

    def limit(self, delta: Tensor) -> Tensor:
        return _shortened(delta, self.eps)

    def fosc(self, x_adv: Tensor, x: Tensor, g: Tensor) -> Tensor:
        return self.eps * g.flatten(1).norm(dim=1) - ((x_adv - x) * g).flatten(1).sum(1)


@dataclass(frozen=True)
class L2Region:
    ball: L2
    x: Tensor
    eps: Tensor
    """The radius on the device: a recorded projection serves every radius."""

    def start(self, rng: torch.Generator, rows: Rows | None = None) -> Tensor:
        # Uniform in the ball: a uniform direction times a radius whose d-th power is uniform.
        direction = draw(torch.randn, rng, self.x.shape, self.x.device, self.x.dtype, rows=rows)
        u = draw(torch.rand, rng, self.x.shape[:1], self.x.device, self.x.dtype, rows=rows)
        radius = self.ball.eps * u ** (1 / self.x[0].numel())
        return self.project(
            self.x
            + radius.view(-1, *[1] * (self.x.dim() - 1)) * direction / _per_sample_norm(direction)
        )

    def ascend(self, x_adv: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
        return x_adv + alpha * self.ball.direction(g)

    def project(self, x_adv: Tensor) -> Tensor:
        # x is in [0, 1], so clamping to [0, 1] does not increase the distance to x.
        return (self.x + _shortened(x_adv - self.x, self.eps)).clamp(0, 1)

    def maximiser(self, g: Tensor) -> Tensor:
        # By the KKT conditions it is x + eps g / (m |g|), clamped to [0, 1], with the smallest m in
        # [0, 1] for which that is in the ball. Bisect m: the value falls short of the maximum by
        # at most eps |g| times the width of the last interval, which is below rounding.
        step = self.ball.eps * self.ball.direction(g)
        high = g.new_ones(len(g), *[1] * (g.dim() - 1))
        low = torch.zeros_like(high)
        for _ in range(2 - round(math.log2(torch.finfo(g.dtype).eps))):
            m = (low + high) / 2
            distance = self.ball.distance((self.x + step / m).clamp(0, 1), self.x)
            outside = (distance > self.ball.eps).view_as(m)
            low, high = torch.where(outside, m, low), torch.where(outside, high, m)
        return (self.x + step / high).clamp(0, 1)


BALLS: dict[str, type[Linf] | type[L2]] = {ball.norm: ball for ball in (Linf, L2)}
