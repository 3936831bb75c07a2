"""Augmentation as batched tensor operations on the device the images are on."""

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_flip(x: Tensor, rng: torch.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """Each image shifted by up to `pad` pixels each way (zeros come in) and mirrored with probability 1/2, as one gather."""
    n, _, height, width = x.shape
    device = x.device
    dy, dx = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=rng, device=device)
    rows = dy + torch.arange(height, device=device)
    columns = dx + torch.arange(width, device=device)
    if flip:
        mirrored = torch.rand(n, 1, generator=rng, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    # Advanced indices around a slice put the batch first and the channels last; the permute puts them back.
    picked = F.pad(x, [pad] * 4)[torch.arange(n, device=device)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()
