"""The fast engine computes what the plain one computes: every method, several batches, on the CPU and where there is one on a GPU."""

from typing import Any

import pytest
import torch
from torch import nn

from amata.batch import Batch
from amata.engine import FastNet, PlainNet, make_net
from amata.engine.attacked import AttackedNet, folded_pairs
from amata.losses import ce
from amata.methods import Memory
from amata.models import build
from amata.schedules import Control
from amata.seeds import generator
from tests.conftest import images, labels, small_net
from tests.test_methods import ALL, BATCHES, U, batch_of, sgd

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


class Foldable(nn.Module):
    """Convolutions with a BatchNorm behind them that may be folded, and one before that may not."""

    folds = (("conv", "bn"),)
    first_layer = "stem"

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.softplus(self.first(self.stem(x)))
        return self.head(nn.functional.softplus(self.bn(self.conv(x))).flatten(1))


def foldable(device: str) -> nn.Module:
    """In double precision: a sign that hangs on a rounding error would tell nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Foldable().double().to(device)


def moved(batch: Batch, device: str) -> Batch:
    frame = batch.frame
    if frame is not None:
        frame = type(frame)(*(v.to(device) if isinstance(v, torch.Tensor) else v for v in frame))
    return batch._replace(x=batch.x.double().to(device), y=batch.y.to(device), frame=frame)


def trained(kind: type[PlainNet], name: str, device: str, **options: Any) -> tuple[nn.Module, PlainNet, Memory]:
    model, method = foldable(device), ALL[name][0]
    net = kind(model, sgd(model), first_layer="stem", precision="fp32", **options)
    memory: Memory = {}
    for index in range(BATCHES):
        torch.manual_seed(index)
        u = Control(U.steps + index % 2, U.step_size / (1 + index % 2))  # K and alpha change on the way
        method.step(net, moved(batch_of(index), device), u, generator(0, index, "method", device=device), memory)
    return model, net, memory


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", ALL)
def test_a_fast_step_is_the_plain_step(name: str, mode: str, device: str) -> None:
    plain, reference, kept = trained(PlainNet, name, device, attack_mode=mode)
    fast, net, memory = trained(FastNet, name, device, attack_mode=mode, compiled=False)
    for (key, a), b in zip(fast.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-8), key
    assert net.grad_evals == reference.grad_evals
    assert net.first_layer_evals == reference.first_layer_evals
    assert float(net.last_loss) == pytest.approx(float(reference.last_loss), rel=1e-5)  # type: ignore[arg-type]
    for key, value in kept.items():
        assert torch.allclose(memory[key].double(), value.double(), atol=1e-8), key


@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "wrn-34-10", "lenet"])
def test_a_folded_copy_gives_the_same_logits_and_input_gradients(name: str) -> None:
    args = {"stem": "small"} if name == "resnet18" else {"depth": 10, "widen": 1} if name == "wrn-34-10" else {}
    side, channels = (28, 1) if name == "lenet" else (32, 3)
    model = build(name, in_channels=channels, classes=10, args=args, seed=1).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            generator_ = torch.Generator().manual_seed(3)
            module.running_mean = 0.1 * torch.randn(module.num_features, generator=generator_).double()
            module.running_var = 0.5 + torch.rand(module.num_features, generator=generator_).double()
    attacked = AttackedNet(model, train_mode=False, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    attacked.refresh()
    x = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0)).double()
    y, gradients = torch.tensor([1, 2]), []
    for net in (model.eval(), attacked.model):
        x_ = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad(ce(net(x_), y).sum(), x_)[0])
    assert torch.allclose(model(x), attacked.model(x), atol=1e-9)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-9)
    expected = {"preactresnet18": 8, "resnet18": 20, "wrn-34-10": 3, "lenet": 0}[name]
    assert len(folded_pairs(model)) == expected
    assert sum(isinstance(m, nn.BatchNorm2d) for m in attacked.model.modules()) == {"preactresnet18": 9, "wrn-34-10": 4}.get(name, 0)


def test_bf16_keeps_weights_and_losses_in_fp32() -> None:
    for kind in (PlainNet, FastNet):
        model = small_net()
        net = kind(model, sgd(model), precision="bf16")
        x, y = images(8), labels(8)
        assert net.logits(x).dtype == torch.float32
        exact = PlainNet(small_net(), sgd(small_net())).input_grad(x, y)
        rough = net.input_grad(x, y)
        assert 0.9 < torch.nn.functional.cosine_similarity(exact.flatten(), rough.float().flatten(), dim=0) < 1
        net.backward(x, y)
        net.apply()
        assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_engine_is_chosen_by_device_and_says_what_runs() -> None:
    model = small_net()
    assert make_net(model, sgd(model)).describe() == "plain engine, fp32"
    assert make_net(model, sgd(model), engine="fast").describe() == "fast engine, fp32, eager (no CUDA device)"
    assert make_net(model, sgd(model), precision="bf16").describe() == "plain engine, bf16"
