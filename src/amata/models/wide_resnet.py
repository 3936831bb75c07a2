"""WideResNet for 32x32 images (Zagoruyko & Komodakis 2016, arXiv 1605.07146): `wrn-DEPTH-WIDEN`,
such as the WRN-34-10 of the robustness literature.

As in TRADES: pre-activation blocks, He initialisation, no dropout. The reference code's extra
stage, which no forward pass uses, is left out.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from amata.errors import InputError
from amata.models.normalize import Normalize


class WideBlock(nn.Module):
    foldable_batchnorms = (("conv1", "bn2", "relu2"),)

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(width_in, width, 1, stride=stride, bias=False) if width_in != width else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        if self.shortcut is not None:
            x = self.shortcut(out)
        out = self.conv2(self.relu2(self.bn2(self.conv1(out))))
        return out + x


class WideResNet(nn.Module):
    first_layer = "conv1"
    preact_chain = ("layers", "bn")

    def __init__(
        self,
        *,
        in_channels: int = 3,
        classes: int = 10,
        normalize: Normalize | None = None,
        depth: int = 34,
        widen: int = 10,
    ) -> None:
        super().__init__()
        if (depth - 4) % 6 or depth < 10:
            raise InputError(f"depth = {depth} of a wide ResNet must be 6 n + 4, as in 28 or 34")
        blocks = (depth - 4) // 6
        self.normalize = normalize or Normalize()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        widths = (16, 16 * widen, 32 * widen, 64 * widen)
        self.layers = nn.Sequential(
            *(
                WideBlock(before if block == 0 else width, width, stride if block == 0 else 1)
                for before, width, stride in zip(widths, widths[1:], (1, 2, 2), strict=False)
                for block in range(blocks)
            )
        )
        self.bn = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(
                    module.weight,
                    0,
                    math.sqrt(
                        2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels)
                    ),
                )
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.layers(self.conv1(self.normalize(x)))))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
