"""Networks of other kinds than the built-in ones: a small vision transformer, odd heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HeadFirst(nn.Module):
    """The classifier is registered before the layers in front of it."""

    def __init__(self, classes: int = 4, *, pooled: bool = False) -> None:
        super().__init__()
        self.pooled = pooled
        self.head = nn.Linear(12, classes)
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 if pooled else 8 * 36, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        x = x.mean((2, 3)) if self.pooled else x.flatten(1)
        return self.head(F.relu(self.fc(x)))


class TwoHeads(nn.Module):
    """The logits are the mean of two classifiers, as in distilled transformers."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.head = nn.Linear(12, classes)
        self.body = nn.Linear(36, 12)
        self.other_head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.body(x.flatten(1)))
        return (self.head(x) + self.other_head(x)) / 2


class CosineHead(nn.Module):
    """Squeeze and excitation, GELU and GroupNorm, and a head that uses its weights itself."""

    first_layer = "stem"

    def __init__(self, in_channels: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.stem(x)))
        x = x * self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return 5 * F.linear(F.normalize(x.mean((2, 3))), F.normalize(self.head.weight))


class Block(nn.Module):
    """Attention and an MLP, each after LayerNorm, with layer scale."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.gamma * self.proj(mixed)
        return x + self.gamma * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TinyViT(nn.Module):
    """A vision transformer for small images, with a class token and position embeddings."""

    first_layer = "patches"

    def __init__(
        self, in_channels: int = 3, classes: int = 5, side: int = 8, width: int = 12
    ) -> None:
        super().__init__()
        self.head = nn.Linear(width, classes)
        self.cls_token = nn.Parameter(torch.full((1, 1, width), 0.02))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (side // 4) ** 2, width))
        self.patches = nn.Conv2d(in_channels, width, 4, stride=4)
        self.blocks = nn.Sequential(Block(width, 3), Block(width, 3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
