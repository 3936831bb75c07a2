"""What the data room hands to a training method."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Images in [0, 1], their labels, and the identity of each sample in its data set."""

    x: Tensor
    y: Tensor
    ids: Tensor
