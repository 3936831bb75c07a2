"""Class weights: how much the loss of an image counts in the updates, by its class."""

import torch
from torch import Tensor

from amata.data import ImageSet, labels_of
from amata.errors import InputError
from amata.recipes.schema import Optim


def class_weights(config: Optim, images: ImageSet | None, device: torch.device) -> Tensor | None:
    """The weights w_c of `optim.class_weights`; None without any.

    balanced: w_c = n / (C n_c), with n_c of the n images in class c of C. The mean over the images
    is 1, so that the learning rate keeps its meaning.
    """
    if config.class_weights == "none":
        return None
    if isinstance(config.class_weights, list):
        return torch.tensor(config.class_weights, device=device)
    if images is None:
        raise InputError(
            "class_weights = 'balanced' counts the labels of all training images, and batches do "
            "not say them beforehand; give a list of weights"
        )
    counts = labels_of(images).cpu().bincount()
    present = counts > 0
    weights = torch.ones(len(counts))
    weights[present] = len(images) / (int(present.sum()) * counts[present].float())
    return weights.to(device)
