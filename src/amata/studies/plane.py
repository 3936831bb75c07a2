"""A plane through an image: its directions, its coordinates, and where it leaves the ball."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from amata.errors import InputError
from amata.seeds import generator
from amata.threat import Ball

ANGLES = 180
"""Points on the edge of the ball."""


@dataclass(frozen=True)
class Plane:
    """Two orthonormal directions through an image."""

    origin: Tensor
    x: Tensor
    y: Tensor

    def coordinates(self, points: Tensor) -> Tensor:
        """The coordinates of each point's projection, (N, 2)."""
        moved = (points - self.origin).flatten(1)
        return torch.stack([moved @ self.x.flatten(), moved @ self.y.flatten()], 1)

    def at(self, coordinates: Tensor) -> Tensor:
        """The points of the plane at these coordinates (N, 2)."""
        a, b = (coordinates[:, i].view(-1, *[1] * (self.origin.dim() - 1)) for i in (0, 1))
        return self.origin + a * self.x + b * self.y

    def units(self, ball: Ball) -> tuple[float, float]:
        """The coordinates, along X and along Y, at which a point of the plane leaves the ball."""
        zero = torch.zeros_like(self.origin)
        x, y = (ball.eps / float(ball.distance(v, zero)) for v in (self.x, self.y))
        return x, y

    def edge(self, ball: Ball) -> Tensor:
        """The edge of the ball in the plane: a circle in L2, a polygon in L-inf."""
        around, directions = self._around()
        radii = ball.eps / ball.distance(directions, torch.zeros_like(directions))
        return around * radii[:, None]

    def shadow(self, ball: Ball) -> Tensor:
        """The edge of the ball's projection onto the plane. Projected attacks stay inside."""
        _, directions = self._around()
        return self.coordinates(self.origin + ball.eps * ball.direction(directions))

    def _around(self) -> tuple[Tensor, Tensor]:
        """Unit vectors of the plane in all directions, as coordinates and as images."""
        angles = torch.linspace(0, 2 * math.pi, ANGLES + 1, device=self.origin.device)
        around = torch.stack([angles.cos(), angles.sin()], 1).to(self.origin.dtype)
        return around, self.at(around) - self.origin


def principal_direction(points: Tensor, origin: Tensor) -> Tensor:
    """The first principal component of the displacements, pointing towards the last of them."""
    moved = (points - origin).flatten(1)
    centred = moved - moved.mean(0)
    direction = torch.linalg.svd(centred, full_matrices=False).Vh[0]
    if float(centred.abs().max()) == 0:
        raise InputError(
            "the attack does not move this image, so it has no principal direction; choose another "
            "--image"
        )
    return (direction if float(moved[-1] @ direction) >= 0 else -direction).view(origin.shape)


def rademacher_direction(origin: Tensor, other: Tensor, seed: int) -> Tensor:
    """A unit vector of random signs, orthogonalised against `other`."""
    signs = (
        torch.randint(0, 2, origin.shape, generator=generator(seed, "rademacher")).to(
            origin.device, origin.dtype
        )
        * 2
        - 1
    )
    signs = signs - (signs * other).sum() * other
    return signs / signs.norm()
