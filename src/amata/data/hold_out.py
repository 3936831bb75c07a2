"""Test images of a set that has no test part."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from amata.data.images import Arrays
from amata.errors import InputError
from amata.seeds import generator


def held_out(
    labels: Tensor,
    classes: int,
    share: float,
    where: str,
    hint: str,
    names: Sequence[bytes] | None = None,
) -> Tensor:
    """The positions of a share of each class, to be held out as test set, in order. They do not
    depend on the run's seed: no run is tested on what another trained on.

    Given the `names` of the images, takes the smallest SHA-256 hashes of each class: for each image
    that is added or removed, at most one other changes sides.
    """
    rng, held = generator(0, "test"), []
    ranks = None if names is None else [hashlib.sha256(name).digest() for name in names]
    for label in range(classes):
        members = (labels == label).nonzero().squeeze(1)
        if ranks is None:
            order = torch.randperm(len(members), generator=rng)
        else:
            hashes = [ranks[i] for i in members.tolist()]
            order = torch.tensor(sorted(range(len(hashes)), key=hashes.__getitem__)).long()
        held.append(members[order[: round(len(members) * share)]])
    positions: Tensor = torch.cat(held).sort().values
    if not 0 < len(positions) < len(labels):
        raise InputError(
            f"data.test_share = {share:g} holds out {len(positions)} of the {len(labels)} images "
            f"of {where}; change it, or {hint}"
        )
    return positions


def hold_out(images: Arrays, share: float, where: str) -> tuple[Arrays, Arrays]:
    """Hold out a share of each class as test set."""
    held = held_out(images.y, images.classes, share, where, "add a test part")
    mask = torch.ones(len(images), dtype=torch.bool)
    mask[held] = False
    return images.subset(mask.nonzero().squeeze(1)), shuffled(images.subset(held))


def shuffled(test: Arrays) -> Arrays:
    """Files are often sorted by class; a fixed random order makes the first N a fair sample."""
    return test.subset(torch.randperm(len(test), generator=generator("parquet")))
