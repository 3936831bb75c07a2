"""ResNet-18 and ResNet-50 (He et al. 2015, arXiv 1512.03385) with torchvision's parameter names, so
that its weights load.

`stem="imagenet"` is the 7x7 convolution and pooling of torchvision; `stem="small"` is a 3x3
convolution for 32x32 images.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from amata.errors import InputError
from amata.models.normalize import Normalize


class BasicBlock(nn.Module):
    expansion = 1
    foldable_batchnorms = (
        ("conv1", "bn1", "relu1"),
        ("conv2", "bn2"),
        ("downsample.0", "downsample.1"),
    )

    def __init__(
        self, width_in: int, width: int, stride: int, downsample: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4
    foldable_batchnorms = (
        ("conv1", "bn1", "relu1"),
        ("conv2", "bn2", "relu2"),
        ("conv3", "bn3"),
        ("downsample.0", "downsample.1"),
    )

    def __init__(
        self, width_in: int, width: int, stride: int, downsample: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.relu2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    first_layer = "conv1"
    foldable_batchnorms = (("conv1", "bn1", "relu1"),)

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        in_channels: int = 3,
        classes: int = 1000,
        normalize: Normalize | None = None,
        stem: str = "imagenet",
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "small"):
            raise InputError(f"stem = {stem!r} of a resnet must be 'imagenet' or 'small'")
        self.normalize = normalize or Normalize()
        self.pool_stem = stem == "imagenet"
        kernel, stride = (7, 2) if self.pool_stem else (3, 1)
        self.conv1 = nn.Conv2d(
            in_channels, 64, kernel, stride=stride, padding=kernel // 2, bias=False
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.relu1 = nn.ReLU()
        self.layer1 = _stage(block, 64, 64, depths[0], 1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], 2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], 2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], 2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(self.normalize(x))))
        if self.pool_stem:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], width_in: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    out = width * block.expansion
    downsample = None
    if stride != 1 or width_in != out:
        downsample = nn.Sequential(
            nn.Conv2d(width_in, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
        )
    return nn.Sequential(
        block(width_in, width, stride, downsample),
        *(block(out, width, 1, None) for _ in range(depth - 1)),
    )


def resnet18(
    *,
    in_channels: int = 3,
    classes: int = 1000,
    normalize: Normalize | None = None,
    stem: str = "imagenet",
) -> ResNet:
    return ResNet(
        BasicBlock,
        (2, 2, 2, 2),
        in_channels=in_channels,
        classes=classes,
        normalize=normalize,
        stem=stem,
    )


def resnet50(
    *,
    in_channels: int = 3,
    classes: int = 1000,
    normalize: Normalize | None = None,
    stem: str = "imagenet",
) -> ResNet:
    return ResNet(
        Bottleneck,
        (3, 4, 6, 3),
        in_channels=in_channels,
        classes=classes,
        normalize=normalize,
        stem=stem,
    )
