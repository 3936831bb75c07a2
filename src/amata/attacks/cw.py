"""The Carlini-Wagner L2 attack (Carlini & Wagner 2017, arXiv 1608.04644): the smallest perturbation that changes the prediction.

minimise over w:  |x' - x|_2^2 + c * max(z_y(x') - max_{i != y} z_i(x') + kappa, 0),   x' = (tanh(w) + 1) / 2

The paper's tables use reference code that starts at a black image, leaves [0, 1], takes max(z_y, 0) for z_y and returns the last
iterate whether it fools the network or not. Here w starts at x, tanh keeps x' in the box, the hinge is the one above, and each
sample keeps the nearest success it ever met. As in the paper, c is one constant by default; `search_steps` turns on the original
binary search for each sample's own c.
"""

import torch
from torch import Tensor, nn

from amata.attacks.guard import check_images, check_logits, untouched
from amata.errors import InputError
from amata.losses import margin

# tanh reaches 0 and 1 only at infinity; images are drawn in by this much so that black and white pixels keep a gradient.
_INSIDE = 1 - 1e-6


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
    """Each sample's nearest adversarial image found, or the sample itself where none was; no ball limits the distance."""
    check_images(x, y)
    if c <= 0 or steps < 1 or lr <= 0 or search_steps < 0:
        raise InputError(f"cw-l2 needs c > 0, steps >= 1, lr > 0 and search_steps >= 0, not {c}, {steps}, {lr}, {search_steps}")
    nearest, distance = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
    constant = torch.full((len(x),), float(c), device=x.device)
    low, high = torch.zeros_like(constant), torch.full_like(constant, torch.inf)
    with untouched(model):
        with torch.no_grad():
            check_logits(model(x[:1]), y[:1])
        w_start = torch.atanh((2 * x - 1) * _INSIDE)
        for _ in range(1 + search_steps):
            w = w_start.clone().requires_grad_()
            adam = torch.optim.Adam([w], lr=lr)
            succeeded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
            for _ in range(steps):
                x_adv = (torch.tanh(w) + 1) / 2
                squared = (x_adv - x).flatten(1).square().sum(1)
                lead = margin(model(x_adv), y)
                loss = squared + constant * (kappa - lead).clamp_min(0)
                (w.grad,) = torch.autograd.grad(loss.sum(), w)
                with torch.no_grad():
                    success = (lead > 0) & (lead >= kappa)
                    succeeded |= success
                    closer = success & (squared < distance)
                    distance = torch.where(closer, squared, distance)
                    nearest = torch.where(closer.view(-1, *[1] * (x.dim() - 1)), x_adv, nearest)
                adam.step()
            # Binary search: a success asks for a smaller c, a failure for a larger one (tenfold until the first success).
            high = torch.where(succeeded, torch.minimum(high, constant), high)
            low = torch.where(succeeded, low, torch.maximum(low, constant))
            constant = torch.where(high.isinf(), constant * 10, (low + high) / 2)
    return nearest.detach()
