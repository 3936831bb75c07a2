"""A recipe that fits an image folder and this device."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import tomli_w
import torch

from amata.data.check import Check
from amata.errors import printable

SIDES = (32, 64, 96, 128)
"""Crops of small images: the nearest to the median of their shorter sides. Larger ones get 224."""
FEW = 2_000
"""Training images below which a large network only learns them by heart."""
UPDATES = 2_000
"""The number of updates that the epochs are chosen for."""
IN_MEMORY = 2 << 30
"""Bytes of decoded images that are kept in memory."""


@dataclass(frozen=True)
class Network:
    name: str
    args: str
    about: str
    per_pixel: int
    """Bytes of memory that training takes per pixel of an image: about twice what the forward pass
    keeps for the backward pass in fp32."""


SMALL = Network("wrn-10-2", "", "a small network", 5 << 9)
PREACT = Network("preactresnet18", "", "usual for small images", 10 << 10)
RESNET = Network("resnet18", '{ stem = "small" }', "its first layer keeps the resolution", 10 << 10)
PHOTOS = Network("resnet18", "", "usual for photos", 1 << 10)


@dataclass(frozen=True)
class Suggestion:
    """The choices that depend on the images and the device."""

    check: Check
    device: torch.device
    free: int
    """Free bytes of the device's memory; unused on a CPU."""
    skip_bad: bool = False

    @property
    def images(self) -> int:
        """Training images, with those that are held out for validation."""
        return self.check.total("train")

    @property
    def own_valid(self) -> bool:
        return self.check.total("valid") > 0

    @property
    def valid(self) -> int:
        """A tenth, but at most 1,000; too few images have none to spare."""
        return 0 if self.own_valid or self.images < 20 else min(1000, self.images // 10)

    @property
    def crop(self) -> int:
        side = self.check.side
        if side > 1.25 * SIDES[-1]:
            return 224
        return min(SIDES, key=lambda crop: abs(math.log(side / crop)))

    @property
    def photos(self) -> bool:
        return self.crop == 224

    @property
    def network(self) -> Network:
        if self.photos:
            return PHOTOS
        if self.device.type == "cpu" or self.images < FEW:
            return SMALL
        return PREACT if self.crop <= 64 else RESNET

    @property
    def batch(self) -> int:
        """The largest power of two that fits: 32 on a CPU; on a GPU what half of the free memory
        holds, at most 512 (256 photos). An epoch has eight batches, unless they would have fewer
        than 16 images."""
        trained, most = self.images - self.valid, 32
        if self.device.type != "cpu":
            held = self.free // 2 // (self.network.per_pixel * self.crop**2)
            most = min(256 if self.photos else 512, held)
        most = max(2, min(most, max(16, trained // 8), trained // 2))
        return int(2 ** math.floor(math.log2(most)))

    @property
    def epochs(self) -> int:
        per_epoch = math.ceil((self.images - self.valid) / self.batch)
        most = 30 if self.device.type == "cpu" else 50
        return min(most, max(10, math.ceil(UPDATES / per_epoch)))

    @property
    def in_memory(self) -> bool:
        return not self.photos and len(self.check.images) * 3 * self.crop**2 <= IN_MEMORY

    @property
    def eps(self) -> str:
        return "4/255" if self.photos else "8/255"

    def to_toml(self, root: Path) -> str:
        crop, batch, epochs, network = self.crop, self.batch, self.epochs, self.network
        w, h = self.check.sizes["median"]
        lr = float(f"{0.03 * math.sqrt(batch / 512):.2g}")
        updates = epochs * math.ceil((self.images - self.valid) / batch)
        args = f"args = {network.args}\n" if network.args else ""
        where = "a CPU" if self.device.type == "cpu" else f"{self.free >> 30} GiB of free memory"
        test = self.check.total("test")
        tested = (
            "limit = 1000  # of the test images: attacks on all of them take long on a CPU\n"
            if self.device.type == "cpu" and test > 1000
            else ""
        )
        if self.own_valid:
            valid = "# The validation part of the folder is the validation split."
        elif self.valid:
            valid = f"valid = {self.valid}  # training images that select the best epoch"
        else:
            valid = "valid = 0  # too few images to hold some out: the last epoch is used"
        if self.photos:
            framing = (
                "resize = 256  # the shorter side, then crops of 224 x 224\ncrop = 224\n"
                'augment = "flip"  # "none" if left and right matter, as for letters\n'
                f"workers = {max(1, min(8, os.cpu_count() or 1))}  # processes that decode"
            )
        else:
            framing = (
                f"resize = {crop}  # the median image has {w} x {h} pixels\ncrop = {crop}\n"
                'augment = "crop-flip"  # "none" if left and right matter, as for letters\n'
                f"pad = {crop // 8}  # shifts by up to {crop // 8} pixels"
            )
            if self.in_memory:
                framing += "\nin_memory = true  # small enough: images are decoded once"
        skip = "\nskip_bad = true  # go on without files that cannot be used" * self.skip_bad
        # Folders may have any name; a line break in it must not end the comment.
        return f"""\
# Amata (K 1 to 3) on {printable(root.name)}: {len(self.check.layout.names)} classes, \
{self.images:,} training and {test:,} test images.
# Written by `amata init` for {where}. Every key: `amata recipes keys`.
[data]
name = "folder"
{tomli_w.dumps({"root": str(root)}).strip()}
{framing}
batch_size = {batch}
{valid}{skip}

[model]
name = "{network.name}"  # {network.about}
{args}mean = [0.485, 0.456, 0.406]  # of natural images, for the normalisation in the network
std = [0.229, 0.224, 0.225]

[threat]
norm = "linf"
eps = "{self.eps}"  # no value of a pixel changes by more

[method]
name = "pgd"

[schedule]
name = "linear"  # Amata: one attack step in the first epochs, three in the last
k_min = 1
k_max = 3
tau = "{"7/255" if self.photos else "13/255"}"  # K times the step size
step_size_max = "{"5/255" if self.photos else "10/255"}"  # longer single steps may collapse

[optim]
name = "muon"  # as in cifar10-amata-quick
lr = {lr}  # 0.03 for a batch of 512, scaled with the root of the batch size
nesterov = true
weight_decay = 0.05
decay_all = false
lr_schedule = "piecewise"
warmup = {round(0.15 * epochs)}
milestones = [{round(0.9 * epochs)}]
factor = 0.2
ema = {0.998 if updates >= 1500 else 0.99}  # the EMA weights are evaluated

[train]
epochs = {epochs}  # {updates:,} updates
valid_attack = "pgd-10"

[eval]
attacks = ["clean", "pgd-20"]
step_size = "{"1/255" if self.photos else "2/255"}"
batch_size = {2 * batch}
{tested}"""


def suggest(check: Check, device: torch.device, *, skip_bad: bool) -> Suggestion:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    return Suggestion(check, device, free, skip_bad and bool(check.bad))
