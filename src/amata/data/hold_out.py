"""Test images of a set that has no test part."""

import torch
from torch import Tensor

from amata.data.images import Arrays
from amata.errors import InputError
from amata.seeds import generator


def hold_out(images: Arrays, share: float, where: str) -> tuple[Arrays, Arrays]:
    """Hold out a share of each class as test set. The test images do not depend on the run's seed:
    no run is tested on what another trained on."""
    rng, held = generator(0, "test"), []
    for label in range(images.classes):
        members = (images.y == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=rng)
        held.append(members[order[: round(len(members) * share)]])
    positions: Tensor = torch.cat(held).sort().values
    if not 0 < len(positions) < len(images):
        raise InputError(
            f"data.test_share = {share:g} holds out {len(positions)} of the {len(images)} images "
            f"of {where}; change it, or add a test part"
        )
    mask = torch.ones(len(images), dtype=torch.bool)
    mask[positions] = False
    return images.subset(mask.nonzero().squeeze(1)), shuffled(images.subset(positions))


def shuffled(test: Arrays) -> Arrays:
    """Files are often sorted by class; a fixed random order makes the first N a fair sample."""
    return test.subset(torch.randperm(len(test), generator=generator("parquet")))
