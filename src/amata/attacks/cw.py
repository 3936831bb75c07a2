"""The Carlini-Wagner L2 attack (Carlini & Wagner 2017, arXiv 1608.04644): the smallest perturbation
that changes the prediction.

minimise over x' in [0, 1]:  |x' - x|_2^2 + c * max(z_y(x') - max_{i != y} z_i(x') + kappa, 0)

The paper's tables use reference code that starts at a black image, leaves [0, 1], takes max(z_y, 0)
for z_y and returns the last iterate whether it fools the network or not. Here x' starts at x, stays
in the box, the hinge is the one above, and each sample keeps the nearest success it ever met. Adam
runs on x' itself and is projected: the original's substitution x' = (tanh(w) + 1) / 2 holds black
and white pixels, which is most of MNIST, in place for hundreds of iterations. As in the paper, c is
one constant by default; `search_steps` turns on the original binary search for each sample's own c.
Adam overshoots the boundary and creeps back, so successes are pulled in at the end by a few
linearised steps, which are exact on a linear model.
"""

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_model, untouched
from amata.errors import InputError
from amata.losses import margin


def cw_l2(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    c: float = 1.0,
    steps: int = 100,
    lr: float = 0.01,
    kappa: float = 0.0,
    search_steps: int = 0,
) -> Tensor:
    """Each sample's nearest adversarial image found, or the sample itself where none was; no ball
    limits the distance."""
    check_images(x, y)
    if c <= 0 or steps < 1 or lr <= 0 or search_steps < 0:
        raise InputError(
            f"cw-l2 needs c > 0, steps >= 1, lr > 0 and search_steps >= 0, not {c}, {steps}, "
            f"{lr}, {search_steps}"
        )
    nearest, distance = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
    constant = torch.full((len(x),), float(c), device=x.device)
    low, high = torch.zeros_like(constant), torch.full_like(constant, torch.inf)
    with untouched(model):
        check_model(model, x, y)
        for _ in range(1 + search_steps):
            x_adv = x.clone().requires_grad_()
            adam = torch.optim.Adam([x_adv], lr=lr)
            succeeded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
            for _ in range(steps):
                squared = (x_adv - x).flatten(1).square().sum(1)
                lead = margin(model(x_adv), y)
                loss = squared + constant * (kappa - lead).clamp_min(0)
                (x_adv.grad,) = torch.autograd.grad(loss.sum(), x_adv)
                with torch.no_grad():
                    success = (lead > 0) & (lead >= kappa)
                    succeeded |= success
                    closer = success & (squared < distance)
                    distance = torch.where(closer, squared, distance)
                    nearest = torch.where(closer.view(-1, *[1] * (x.dim() - 1)), x_adv, nearest)
                    adam.step()
                    x_adv.clamp_(0, 1)
            # Binary search: a success asks for a smaller c, a failure for a larger one (tenfold
            # until the first success).
            high = torch.where(succeeded, torch.minimum(high, constant), high)
            low = torch.where(succeeded, low, torch.maximum(low, constant))
            constant = torch.where(high.isinf(), constant * 10, (low + high) / 2)
        return _pulled_in(model, x, y, nearest.detach(), distance, kappa)


def _pulled_in(
    model: nn.Module, x: Tensor, y: Tensor, nearest: Tensor, squared: Tensor, kappa: float
) -> Tensor:
    """Successes moved closer: to the linearised boundary of each of nine rival classes seen from x,
    then of the margin at the success."""
    with torch.no_grad():
        z = model(x)
        rivals = z.scatter(1, y[:, None], -torch.inf).topk(min(9, z.shape[1] - 1)).indices.T
    found = squared.isfinite()
    for rival in [*rivals, *[None] * 5]:
        point = (x if rival is not None else nearest).detach().requires_grad_()
        z = model(point)
        lead = (
            margin(z, y)
            if rival is None
            else (z.gather(1, rival[:, None]) - z.gather(1, y[:, None])).squeeze(1)
        )
        (g,) = torch.autograd.grad(lead.sum(), point)
        with torch.no_grad():
            # lead + g (x' - point) = kappa, solved for the x' nearest to x; a hundredth further, to
            # be across.
            gap = kappa - lead - (g * (x - point)).flatten(1).sum(1)
            length = gap / g.flatten(1).square().sum(1).clamp_min(1e-12)
            candidate = (x + 1.01 * length.view(-1, *[1] * (x.dim() - 1)) * g).clamp(0, 1)
            reached = margin(model(candidate), y)
            now = (candidate - x).flatten(1).square().sum(1)
            closer = found & (reached > 0) & (reached >= kappa) & (now < squared)
            squared = torch.where(closer, now, squared)
            nearest = torch.where(closer.view(-1, *[1] * (x.dim() - 1)), candidate, nearest)
    return nearest
