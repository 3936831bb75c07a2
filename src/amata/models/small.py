"""Small networks for MNIST-sized images: LeNet, the SmallCNN of TRADES, and a tiny strided CNN for
CPUs.

Their `first_layer`, where YOPO splits the network, is the first convolution with its ReLU, as in
YOPO's MNIST code.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from amata.errors import InputError
from amata.models.normalize import Normalize


class LeNet(nn.Module):
    """The network of PyTorch's MNIST example, which the paper calls LeNet.

    The example changed over time. `variant="1.0"` is that of PyTorch 1.0, the version the paper
    used: two 5x5 convolutions of 20 and 50 channels, 500 hidden units, 431,080 parameters.
    `variant="2020"` is the later one: two 3x3 convolutions of 32 and 64 channels, one pooling,
    dropout, 128 hidden units, 1,199,882 parameters.
    """

    first_layer = "relu1"
    image_size = 28

    def __init__(
        self,
        *,
        in_channels: int = 1,
        classes: int = 10,
        normalize: Normalize | None = None,
        variant: str = "1.0",
    ) -> None:
        super().__init__()
        if variant not in ("1.0", "2020"):
            raise InputError(f"variant = {variant!r} of lenet must be '1.0' or '2020'")
        self.normalize = normalize or Normalize()
        self.with_dropout = variant == "2020"
        width, kernel, hidden = ((32, 64), 3, 128) if self.with_dropout else ((20, 50), 5, 500)
        self.conv1 = nn.Conv2d(in_channels, width[0], kernel)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width[0], width[1], kernel)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 12 * 12 if self.with_dropout else 50 * 4 * 4, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(self.normalize(x)))
        if self.with_dropout:
            x = self.dropout1(F.max_pool2d(F.relu(self.conv2(x)), 2))
            x = self.dropout2(F.relu(self.fc1(x.flatten(1))))
        else:
            x = F.max_pool2d(F.relu(self.conv2(F.max_pool2d(x, 2))), 2)
            x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class SmallCNN(nn.Module):
    """SmallCNN for MNIST (TRADES, YOPO, ATTA): four valid 3x3 convolutions, three linear layers,
    312,202 parameters.

    As in the reference code the last layer starts at zero. So the first batch has no input
    gradient, and its attack ends at its random start.
    """

    first_layer = "relu1"
    image_size = 28

    def __init__(
        self,
        *,
        in_channels: int = 1,
        classes: int = 10,
        normalize: Normalize | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.normalize = normalize or Normalize()
        self.conv1 = nn.Conv2d(in_channels, 32, 3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 32, 3)
        self.conv3 = nn.Conv2d(32, 64, 3)
        self.conv4 = nn.Conv2d(64, 64, 3)
        self.fc1 = nn.Linear(64 * 4 * 4, 200)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(200, 200)
        self.fc3 = nn.Linear(200, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # these convolutions have biases
        nn.init.zeros_(self.fc3.weight)
        nn.init.zeros_(self.fc3.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(self.normalize(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x))
        x = F.max_pool2d(F.relu(self.conv4(x)), 2)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc3(F.relu(self.fc2(x)))


class TinyCNN(nn.Module):
    """Two strided 4x4 convolutions and two linear layers (the MNIST network of Wong et al. 2020):
    166,406 parameters."""

    first_layer = "relu1"
    image_size = 28

    def __init__(
        self,
        *,
        in_channels: int = 1,
        classes: int = 10,
        normalize: Normalize | None = None,
        width: int = 16,
    ) -> None:
        super().__init__()
        self.normalize = normalize or Normalize()
        self.conv1 = nn.Conv2d(in_channels, width, 4, stride=2, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.fc1 = nn.Linear(2 * width * 7 * 7, 100)
        self.fc2 = nn.Linear(100, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(self.normalize(x)))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)
