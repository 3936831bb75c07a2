"""What a method remembers of every image until its next visit: tensors in `memory` with one row per
image of the data set, at its id. ATTA and FGSM-PGI have one.

With a frame the rows are padded images: the batch's crop and flip are applied to read a row, and
inverted exactly to write it.
"""

import torch
from torch import Tensor

from amata.batch import Batch, Frame
from amata.errors import InputError
from amata.methods.contract import Memory

FRESH = "fresh"
"""The flags of images that have not been visited since the last reset."""


def open_store(
    name: str,
    keys: tuple[str, ...],
    batch: Batch,
    memory: Memory,
    device: torch.device,
    frame: Frame | None,
) -> bool:
    """Create the tensors `keys` with zeros, or bring them to the device after a resume. Returns
    whether the batch is the first of a new epoch. `name` is the method's, for the error."""
    if batch.total == 0:
        raise InputError(
            f"{name} stores a perturbation per sample and needs data in memory: iterables have no "
            "sample ids, and a folder's crops change at every read; set data.in_memory = true"
        )
    if keys[0] not in memory:
        pad = frame.pad if frame else 0
        channels, height, width = batch.x.shape[1:]
        shape = (batch.total, channels, height + 2 * pad, width + 2 * pad)
        for key in keys:
            memory[key] = torch.zeros(shape, device=device, dtype=batch.x.dtype)
        memory[FRESH] = torch.ones(batch.total, dtype=torch.bool, device=device)
        memory["epoch"] = torch.tensor(batch.epoch)
    elif memory[keys[0]].device != device:
        for key in (*keys, FRESH):
            memory[key] = memory[key].to(device)
    if batch.epoch == int(memory["epoch"]):
        return False
    memory["epoch"] = torch.tensor(batch.epoch)
    return True


def clear(memory: Memory, keys: tuple[str, ...]) -> None:
    """Reset the store: every image is fresh again."""
    for key in keys:
        memory[key].zero_()
    memory[FRESH].fill_(True)


def read(kept: Tensor, ids: Tensor, frame: Frame | None) -> Tensor:
    """The rows of the images `ids`, cropped and mirrored like the batch."""
    return frame.cut(kept, ids) if frame else kept[ids]


def write(kept: Tensor, values: Tensor, ids: Tensor, frame: Frame | None) -> None:
    """The inverse of `read`."""
    if frame:
        frame.paste_(kept, values.to(kept.device), ids)
    else:
        kept[ids] = values.to(kept.device)
