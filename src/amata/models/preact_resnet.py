"""PreActResNet-18 for 32x32 images (He et al. 2016, arXiv 1603.05027), the network of the paper's
CIFAR-10 experiments.

The literature uses four variants. They differ in the input of the 1x1 shortcut convolution
(`shortcut`: "preact", the block's relu(bn1(x)), or "raw", the block's input) and in a final BN and
ReLU before pooling (`final_bn`): AWP and Rice et al. ("preact", True), our default; YOPO and FAT
("preact", False); Fast and N-FGSM ("raw", True); GradAlign ("raw", False).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from amata.errors import InputError
from amata.models.normalize import Normalize


class PreActBlock(nn.Module):
    foldable_batchnorms = (("conv1", "bn2", "relu2"),)

    def __init__(self, width_in: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.feed_preact = shortcut == "preact"
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(width_in, width, 1, stride=stride, bias=False)
            if stride != 1 or width_in != width
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(out if self.feed_preact else x)
        out = self.conv2(self.relu2(self.bn2(self.conv1(out))))
        return out + x


class PreActResNet18(nn.Module):
    first_layer = "conv1"

    def __init__(
        self,
        *,
        in_channels: int = 3,
        classes: int = 10,
        normalize: Normalize | None = None,
        shortcut: str = "preact",
        final_bn: bool = True,
    ) -> None:
        super().__init__()
        if shortcut not in ("preact", "raw"):
            raise InputError(f"shortcut = {shortcut!r} of preactresnet18 must be 'preact' or 'raw'")
        self.normalize = normalize or Normalize()
        self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.Sequential(
            *(
                PreActBlock(before if first else width, width, stride if first else 1, shortcut)
                for before, width, stride in zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
                for first in (True, False)
            )
        )
        self.bn = nn.BatchNorm2d(512) if final_bn else None
        self.linear = nn.Linear(512, classes)
        self.preact_chain = ("layers", "bn") if shortcut == "preact" and final_bn else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.conv1(self.normalize(x)))
        if self.bn is not None:
            x = F.relu(self.bn(x))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
