"""FAB, the fast adaptive boundary attack (Croce & Hein 2020, arXiv 1907.02044): a small
perturbation that changes the class.

Each step linearises the decision boundary at the current point and projects the point and the image
onto it, within [0, 1]. The next point lies between the two projections, a little beyond the
boundary. A misclassified point is moved back towards the image. An image is done once a
misclassified point lies in the ball.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amata.attacks.survivors import Found, Working, choose, per_image
from amata.losses import correct
from amata.threat import Ball

OVERSHOOT = 1.05
MAX_BIAS = 0.1
"""The largest weight of the image's own projection."""
BACK = 0.9
"""What is left of the perturbation of a misclassified point."""
CHECK = 10
"""Steps between two counts of the images that are left."""
NEWTON_STEPS = 12


@dataclass
class _Approach(Working):
    target: Tensor
    point: Tensor


def fab(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    ball: Ball,
    found: Found,
    rng: torch.Generator,
    targets: Tensor | None = None,
    steps: int = 100,
    random_start: bool = False,
) -> None:
    """One run of FAB on the images that are not broken yet, written into `found`.

    With `targets`, classes for all images of x, it takes the boundary to these. Otherwise it takes
    the nearest boundary, for as many gradients as there are classes.
    """
    left = found.left()
    if len(left) == 0:
        return
    w = found.working(left, x, y)
    order = torch.arange(len(w.row), device=x.device) % len(left)
    point = w.x
    if random_start:
        draw = torch.rand if ball.norm == "linf" else torch.randn
        noise = draw((len(left), *x.shape[1:]), generator=rng, device=x.device, dtype=x.dtype)
        noise = 2 * noise - 1 if ball.norm == "linf" else noise
        length = ball.distance(noise, torch.zeros_like(noise)).clamp_min(1e-12)
        point = (w.x + 0.5 * ball.eps * (noise / per_image(length, noise))[order]).clamp(0, 1)
    a = _Approach(**vars(w), target=(y if targets is None else targets)[left][order], point=point)
    for i in range(steps):
        lead, g = (
            _nearest_boundary(model, a, ball)
            if targets is None
            else _boundary(model, a.point, a.y, a.target)
        )
        with torch.no_grad():
            _step(model, a, ball, lead, g)
            if i == 2 or i % CHECK == CHECK - 1:
                shrunk = found.shrink(a)
                if shrunk is None:
                    return
                a = shrunk
    found.keep(a)


def _step(model: nn.Module, a: _Approach, ball: Ball, lead: Tensor, g: Tensor) -> None:
    # lead + g (x' - point) = 0 is the boundary.
    both = torch.cat([a.point, a.x])
    over = lead + (g * (a.x - a.point)).flatten(1).sum(1)
    d = project_to_plane(both, torch.cat([g, g]), torch.cat([lead, over]), ball.norm)
    here, there = d.chunk(2)
    length = ball.distance(d, torch.zeros_like(d)).clamp_min(1e-8)
    near, far = length.chunk(2)
    bias = per_image((near / (near + far)).clamp_max(MAX_BIAS), a.x)
    moved = (a.point + OVERSHOOT * here) * (1 - bias) + (a.x + OVERSHOOT * there) * bias
    moved = moved.clamp(0, 1)
    wrong = ~correct(model(moved), a.y)
    success = wrong & (ball.distance(moved, a.x) <= ball.eps) & ~a.broken
    a.x_adv = choose(success, moved, a.x_adv)
    a.broken = a.broken | success
    a.point = choose(wrong, a.x + BACK * (moved - a.x), moved)


def _boundary(model: nn.Module, point: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The lead of the target class over y at each point, and its gradient."""
    point = point.detach().requires_grad_()
    z = model(point)
    lead = (z.gather(1, target[:, None]) - z.gather(1, y[:, None])).squeeze(1)
    (g,) = torch.autograd.grad(lead.sum(), point)
    return lead.detach(), torch.nan_to_num(g, 0.0, 0.0, 0.0)


def _nearest_boundary(model: nn.Module, a: _Approach, ball: Ball) -> tuple[Tensor, Tensor]:
    """The boundary to the class whose linearised boundary is nearest."""
    with torch.no_grad():
        classes = model(a.point).shape[1]
    nearest = a.x.new_full((len(a.x),), torch.inf)
    lead, g = torch.zeros_like(nearest), torch.zeros_like(a.x)
    for k in range(classes):
        target = torch.full_like(a.y, k)
        lead_k, g_k = _boundary(model, a.point, a.y, target)
        flat = g_k.flatten(1)
        dual = flat.abs().sum(1) if ball.norm == "linf" else flat.norm(dim=1)
        distance = (lead_k.abs() / (dual + 1e-12)).masked_fill(a.y == k, torch.inf)
        nearer = distance < nearest
        lead, g = torch.where(nearer, lead_k, lead), choose(nearer, g_k, g)
        nearest = torch.where(nearer, distance, nearest)
    return lead, g


def project_to_plane(x: Tensor, w: Tensor, over: Tensor, norm: str) -> Tensor:
    """The shortest d in `norm` with <w, d> = -over and x + d in [0, 1]. If there is none, the d
    that comes nearest to the plane.

    Every pixel moves against the sign of w * over. In L-inf all move by t, in L2 by t |w_i|, unless
    they meet the border first. So t solves sum_i a_i min(t, r_i) = |over|, where r_i is the t at
    which pixel i meets the border. The left side is concave and piecewise linear in t: Newton's
    method from t = 0 approaches the solution from below, and meets it after a few steps.
    """
    scale = w.flatten(1).abs().amax(1).clamp_min(torch.finfo(w.dtype).tiny)
    w = (w / per_image(scale, w)).flatten(1)
    over = (over / scale)[:, None]
    direction = -(w * torch.where(over >= 0, 1.0, -1.0)).sign()
    room = torch.where(direction > 0, 1 - x.flatten(1), x.flatten(1))
    size = w.abs()
    if norm == "linf":
        a, r = size, room
    else:
        direction = direction * (size > 1e-8)
        a, r = size.square(), room / size.clamp_min(1e-8)
    goal, t = over.abs(), torch.zeros_like(over)
    least = torch.finfo(w.dtype).tiny
    for _ in range(NEWTON_STEPS):
        missing = (goal - (a * torch.minimum(t, r)).sum(1, keepdim=True)).clamp_min(0)
        slope = (a * (r > t)).sum(1, keepdim=True)
        t = t + (missing / slope.clamp_min(least)).clamp_max(1e12)
    d = torch.minimum(t, r) if norm == "linf" else torch.minimum(t * size, room)
    return (d * direction).view_as(x)
