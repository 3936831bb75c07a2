"""Augmentation as batched tensor operations on the device the images are on."""

import torch
import torch.nn.functional as F
from torch import Tensor

from amata.batch import Frame
from amata.seeds import Rows


def crop_flip(
    x: Tensor,
    rng: torch.Generator,
    *,
    pad: int = 4,
    flip: bool | Tensor = True,
    rows: Rows | None = None,
) -> tuple[Tensor, Frame]:
    """Random crops of zero-padded images, offsets 0 to 2 pad in both directions, mirrored with
    probability 1/2, or where the tensor `flip` is true. Returns the images and their frames.
    `rows`: which rows of a larger batch these images are."""
    (n, _, height, width), device = x.shape, x.device
    part = rows or Rows(0, n, n)
    mine = slice(part.first, part.last)
    dy, dx = torch.randint(0, 2 * pad + 1, (2, part.total, 1), generator=rng, device=device)[
        :, mine
    ]
    lines = dy + torch.arange(height, device=device)
    columns = dx + torch.arange(width, device=device)
    if flip is True:
        flip = torch.rand(part.total, generator=rng, device=device)[mine] < 0.5
    if isinstance(flip, Tensor):
        columns = torch.where(flip[:, None], columns.flip(1), columns)
    frame = Frame(lines, columns, pad)
    return frame.cut(F.pad(x, [pad] * 4)), frame


def cutout(x: Tensor, share: float, rng: torch.Generator, *, rows: Rows | None = None) -> Tensor:
    """The images with a rectangle of `share` of both sides replaced by the image's mean colour. Its
    centre is any pixel, so it may be cut by the border. `rows`: as in `crop_flip`."""
    n = len(x)
    part = rows or Rows(0, n, n)
    places = torch.rand(2, part.total, 1, generator=rng, device=x.device)
    inside = []
    for place, length in zip(places[:, part.first : part.last], x.shape[2:], strict=True):
        side = max(round(share * length), 1)
        first = (place * length).long() - side // 2
        pixels = torch.arange(length, device=x.device)
        inside.append((pixels >= first) & (pixels < first + side))
    covered = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(covered, x.mean((2, 3), keepdim=True), x)
