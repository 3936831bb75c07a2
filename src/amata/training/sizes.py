"""Training on smaller images: reduction to a size of the schedule, and what is checked before."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from amata.attacks.checks import forward
from amata.batch import Batch
from amata.engine import no_cudnn_benchmark
from amata.errors import InputError
from amata.quantity import MOST_SIZES
from amata.recipes import Recipe
from amata.schedules import Control

Plan = Sequence[Control[float]]

RADIUS = {"linf": 0, "l2": 1}
"""The mean over blocks of pixels maps a ball to a ball: that of L-inf keeps its radius, that of L2
shrinks like the side. So the radius is multiplied by this power of the share of the side."""


def reduced(batch: Batch, size: int | None) -> Batch:
    """The batch with images of size x size pixels: each is the mean over an area, so that all stay
    in [0, 1]. With half the side it is the mean of four pixels; bilinear interpolation would
    weigh the pixels around them too."""
    if size is None:
        return batch
    # where they were cropped no longer says where a pixel comes from
    return batch._replace(x=F.interpolate(batch.x.contiguous(), size, mode="area"), frame=None)


def reduced_sizes(plan: Plan | None, side: int | None) -> list[int]:
    """The sizes below the full one, in the order of the epochs."""
    return list(dict.fromkeys(u.size for u in plan or [] if u.size and u.size != side))


def pixel_shares(plan: Plan, side: int | None) -> list[float]:
    """The pixels of every epoch's images, as a share of the full ones."""
    return [(u.size / side) ** 2 if u.size and side else 1.0 for u in plan]


def check_usable(recipe: Recipe, plan: Plan | None) -> None:
    """Refuse smaller images in a ball whose radius there is not known, and too many sizes."""
    found = reduced_sizes(plan, None)
    if not found:
        return
    if recipe.ball.norm not in RADIUS:
        raise InputError(
            f"the radius of a ball in {recipe.ball.norm} is not known for smaller images; set "
            "schedule.sizes=[]"
        )
    if len(found) >= MOST_SIZES:
        raise InputError(
            f"the schedule has {len(found)} sizes of images, and every size is compiled; use at "
            f"most {MOST_SIZES - 1} besides the full one"
        )


def check_sizes(
    model: nn.Module, plan: Plan | None, shape: tuple[int, ...] | None, device: torch.device
) -> None:
    """Refuse sizes above that of the data, and networks that are made for one size. `shape` is that
    of an image, if it is known."""
    found = reduced_sizes(plan, None)
    if not found:
        return
    if shape is None:
        raise InputError(
            "schedule.sizes needs images whose size is known before training; pass single images "
            "(tensors, arrays or a Dataset) and not an iterable of batches"
        )
    channels, height, width = shape
    if height != width:
        raise InputError(
            f"schedule.sizes needs square images, and these have {height} x {width} pixels; set "
            "schedule.sizes=[]"
        )
    if (most := max(found)) > height:
        raise InputError(
            f"schedule.sizes has {most}, and the images have {height} x {height} pixels; images "
            "are not enlarged: set a smaller size"
        )
    full: torch.Size | None = None
    logits: torch.Size | None
    for size in (height, *found):
        try:
            with torch.no_grad(), no_cudnn_benchmark():
                image = torch.zeros(1, channels, size, size, device=device)
                logits = forward(model.eval(), image).shape
        except InputError:
            if full is None:
                return  # a model that does not suit the images at all has an error of its own
            logits = None
        full = full or logits
        if logits != full:
            raise InputError(
                f"schedule.sizes has {size}, and the model takes images of {height} x {width} "
                "pixels only; use a network with global pooling, or set schedule.sizes=[]"
            )
