"""The engine's train-mode BatchNorm against torch's."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata.engine import FastNet, PlainNet
from amata.engine.batchnorm import batch_norm, batch_norm_sums, replace_batchnorms
from amata.losses import ce
from amata.models import build
from tests.test_engine import gpu
from tests.test_methods import sgd

SHAPES = [(8, 5, 3, 3), (2, 64, 1, 1), (3, 2, 2, 2), (3, 130, 5, 7)]


def tensors(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Images, weights, biases and a gradient."""
    rng = torch.Generator().manual_seed(sum(shape))
    sizes = [shape, shape[1:2], shape[1:2], shape]
    x, weight, bias, g = (torch.randn(s, generator=rng, dtype=torch.float64) for s in sizes)
    x, g = ((t + 0.5).to(dtype=dtype, device=device) for t in (x, g))
    return [
        x.to(memory_format=torch.channels_last),
        *(t.to(device, torch.promote_types(dtype, torch.float32)) for t in (weight, bias)),
        g.to(memory_format=torch.channels_last),
    ]


def reference(x: Tensor, weight: Tensor, bias: Tensor, g: Tensor, relu: bool) -> list[Tensor]:
    """Output, statistics of the batch and gradients, by torch in float64."""
    x, weight, bias = (t.detach().double().requires_grad_() for t in (x, weight, bias))
    mean, var = torch.zeros_like(weight.detach()), torch.zeros_like(weight.detach())
    y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0)
    y = y.relu() if relu else y
    grads = torch.autograd.grad(y, [x, weight, bias], g.double())
    return [y.detach(), mean, var, *grads]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs_batchnorm(shape: tuple[int, ...], relu: bool) -> None:
    x, weight, bias, g = tensors(shape, torch.float64)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y, mean, _, var = batch_norm(x, weight, bias, 1e-5, relu)
    grads = torch.autograd.grad(y, leaves, g)
    for a, b in zip([y, mean, var, *grads], reference(x, weight, bias, g, relu), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("relu", [False, True])
def test_its_gradients_are_differences(relu: bool) -> None:
    leaves = [t.requires_grad_() for t in tensors((2, 2, 2, 2), torch.float64)[:3]]
    assert torch.autograd.gradcheck(lambda *t: batch_norm(*t, 1e-5, relu)[0], leaves, atol=1e-6)


KERNELS = """
import sys, torch
from amata.engine import batchnorm_kernels as kernels
from tests.test_batchnorm import check_kernels
check_kernels(kernels, "cpu")
"""


def check_kernels(kernels: Any, device: str) -> None:
    for shape, relu in [(s, r) for s in [*SHAPES, (8, 16, 24, 24)] for r in (False, True)]:
        for dtype, tolerance in [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)]:
            x, weight, bias, g = tensors(shape, dtype, device)
            expected = reference(x, weight, bias, g, relu)
            y, mean, rstd, var = kernels.batch_norm(x, weight, bias, 1e-5, relu)
            total, dot = kernels.batch_norm_sums(g, x, weight, bias, mean, rstd, relu)
            assert y.dtype == dtype
            assert y.stride() == x.stride()
            found = [y, mean, var, dot, total]
            for a, b in zip(found, [*expected[:3], *expected[4:]], strict=True):
                error = float((a.double() - b).norm() / b.norm())
                assert error < tolerance, (shape, relu, dtype, error)
    # a mean of 1000 standard deviations
    x = (tensors((16, 8, 16, 16), torch.float64)[0] + 1000).float().to(device)
    ones = torch.ones(8, device=device)
    _, mean, _, var = kernels.batch_norm(x, ones, ones, 1e-5, False)
    torch.testing.assert_close(mean.double(), x.double().mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), x.double().var((0, 2, 3)), rtol=1e-4, atol=0)
    # nothing is hidden: NaN stays NaN
    x[0, 0, 0, 0] = torch.nan
    y = kernels.batch_norm(x, ones, ones, 1e-5, True)[0]
    assert bool(y[:, 0].isnan().all())
    assert not bool(y[:, 1:].isnan().any())


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernels_compute_the_same_when_interpreted() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with numpy 2.4")
    assert done.returncode == 0, done.stderr


@gpu
def test_the_kernels_compute_the_same_on_a_gpu() -> None:
    from amata.engine import batchnorm_kernels

    check_kernels(batchnorm_kernels, "cuda")


class Own(nn.BatchNorm2d):
    """A subclass with arithmetic of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2) + 1


class Norms(nn.Module):
    """BatchNorms with and without ReLU, one used twice, one read elsewhere, one in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.none, self.twice, self.read, self.fixed = (
            nn.BatchNorm2d(4, momentum=m) for m in (0.1, 0.3, 0.1, 0.1, 0.1)
        )
        self.own = Own(4)
        self.bare = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        self.act = nn.ReLU(inplace=True)
        self.flat = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.fixed.eval()
        x = self.act(self.relu(x))
        x = self.none(x) + x
        x = self.twice(self.twice(x).relu() * 0.7)
        y = self.read(x)
        mean = self.read.running_mean
        assert mean is not None
        x = F.relu(y) + y * mean[:, None, None]
        x = self.bare(self.fixed(self.own(x)))
        return self.flat(x.mean((2, 3)))


def test_batchnorms_of_a_compiled_graph_are_replaced() -> None:
    counted: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        counted.append(replace_batchnorms(graph.graph, "cpu"))
        graph.graph.lint()
        graph.recompile()
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    x = tensors((6, 4, 5, 5), torch.float32)[0]
    found: list[list[Tensor]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Norms().train()
        run = torch.compile(model, backend=backend, dynamic=False) if compiled else model
        for _ in range(2):
            out = run(x.clone())
            (out * torch.arange(4)).sin().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([out.detach(), *grads, *model.state_dict().values()])
    assert counted == [5]  # relu, none, twice, twice, own
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_sums_count_only_where_the_relu_is_open() -> None:
    x, weight, bias, g = tensors((4, 3, 2, 2), torch.float64)
    y, mean, rstd, _ = batch_norm(x, weight, bias, 1e-5, True)
    total, _ = batch_norm_sums(g, x, weight, bias, mean, rstd, True)
    torch.testing.assert_close(total, (g * (y > 0)).sum((0, 2, 3)))


@gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_update_is_the_plain_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs in one pass, as in TRADES: each updates the running statistics. In fp32 it is as
    close to float64 as the plain update is: where a ReLU is near 0, all of them differ."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(2, 32, 3, 32, 32, generator=rng).cuda()
    y = torch.randint(10, (32,), generator=rng).cuda()

    def update(kind: type[PlainNet], dtype: torch.dtype) -> dict[str, Tensor]:
        model = build("preactresnet18", in_channels=3, classes=10, seed=0).to("cuda", dtype)
        net = kind(model, sgd(model), precision="fp32")
        net.backward((x[0].to(dtype), x[1].to(dtype)), y, loss=summed)
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return {n: t.double() for n, t in {**grads, **dict(model.named_buffers())}.items()}

    exact = update(PlainNet, torch.float64)
    plain, fast = update(PlainNet, torch.float32), update(FastNet, torch.float32)
    for name, value in exact.items():
        usual, error = (float((found[name] - value).norm()) for found in (plain, fast))
        assert error <= 5 * usual + 1e-4 * float(value.norm()) + 1e-6, (name, error, usual)


def summed(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return ce(a, y) + ce(b, y)
