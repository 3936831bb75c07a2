"""The copy of a model that evaluation attacks."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from amata.engine import EvalCopy
from amata.engine.eval_copy import compiled_forward
from amata.evaluation import evaluate
from amata.losses import ce
from amata.threat import Linf
from tests.conftest import images, labels


class ConvNet(nn.Module):
    """A convolution, a BatchNorm with statistics, and a classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(36 * width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.head(self.norm(self.conv(x)).relu().flatten(1))
        return z


def conv_net(seed: int = 0, width: int = 8) -> ConvNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = ConvNet(width)
        net(torch.rand(64, 1, 6, 6))
    return net.eval()


def logits_and_gradient(net: nn.Module, x: torch.Tensor, scale: float) -> list[torch.Tensor]:
    leaf = x.clone().requires_grad_()
    z = net(leaf)
    (g,) = torch.autograd.grad(scale * ce(z, labels(len(x))).sum(), leaf)
    return [z.detach(), g / scale]


def test_an_eval_copy_in_fp16_is_near_the_model_however_small_the_gradients() -> None:
    """Gradients of 1e-12 are zero in fp16."""
    model = conv_net()
    fast, x = EvalCopy(model, fp16=True), images(12)
    assert [p.dtype for p in fast.copy.parameters()].count(torch.float16) == 2
    for scale in (1.0, 1e-12, 1e12):
        (z, g), (z16, g16) = (logits_and_gradient(net, x, scale) for net in (model, fast))
        assert z16.dtype == g16.dtype == torch.float32
        assert torch.allclose(z, z16, atol=3e-3)
        assert float((g - g16).norm() / g.norm()) < 0.02
    assert not fast.out_of_range
    fast.compare([(x, model(x))])
    assert not fast.out_of_range
    fast.compare([(x, model(x)), (x, model(x) + torch.eye(4)[0])])
    assert fast.out_of_range


def test_an_eval_copy_in_fp16_notices_what_fp16_cannot_hold() -> None:
    model = conv_net()
    with torch.no_grad():
        model.conv.weight.mul_(1e6)
        assert model.norm.running_var is not None
        model.norm.running_var.mul_(1e12)
    fast, x = EvalCopy(model, fp16=True), images(12)
    fast(x)
    assert fast.out_of_range


def test_an_eval_copy_takes_new_weights() -> None:
    one, two = conv_net(1), conv_net(2)
    x, fast = images(20), EvalCopy(one)
    fast.refresh(two)
    assert torch.allclose(fast(x), two(x), atol=1e-5)
    assert not torch.allclose(one(x), two(x), atol=1e-2), "the first model is untouched"


def test_eval_copies_of_one_structure_share_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compilations.append(1)
        return graph.forward

    compile_ = partial(torch.compile, backend=backend)
    monkeypatch.setattr("amata.engine.eval_copy.torch.compile", compile_)
    monkeypatch.setattr("amata.engine.eval_copy.has_compiler", lambda: True)
    compiled_forward.cache_clear()
    x, counts = images(20), []
    try:
        for model in (conv_net(1), conv_net(2), conv_net(3, width=6)):
            fast = EvalCopy(model)
            fast.warm_up(x)
            for n in (20, 17):
                assert torch.allclose(fast(images(n)), model(images(n)), atol=1e-5)
            counts.append(len(compilations))
            fast.refresh(conv_net(4, width=model.conv.out_channels))
            fast(x)
            assert len(compilations) == counts[-1], "new weights, old code"
    finally:
        compiled_forward.cache_clear()
    assert 0 < counts[0] == counts[1] < counts[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("factor", [1.0, 1e6], ids=["in range", "out of range"])
def test_a_search_in_fp16_gives_the_accuracy_of_tf32(factor: float) -> None:
    """With huge weights all batches are attacked again in TF32: the images are the same."""
    model = conv_net()
    with torch.no_grad():
        assert model.norm.running_var is not None
        model.conv.weight.mul_(factor)
        model.norm.running_var.mul_(factor**2)
    model, x = model.cuda(), images(60).cuda()
    y = model(x).argmax(1)
    names = ["clean", "pgd-10-2", "cw-l2-5", "apgd-ce"]
    found = [
        evaluate(model, (x, y), ball=Linf(0.05), attacks=names, batch_size=20, precision=p)
        for p in ("auto", "tf32")
    ]
    assert [r.params["precision"] for r in found[0].values()] == ["tf32", "fp16", "tf32", "fp16"]
    for name in names:
        half, full = (results[name] for results in found)
        assert abs(half.accuracy - full.accuracy) <= (0.05 if factor == 1 else 0)
        assert full.params["precision"] == "tf32"
