"""The fast engine computes what the plain one computes: every method, several batches, on a CPU and
on a GPU where there is one."""

import copy
import gc
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal

import pytest
import torch
import torch._functorch.config as functorch
from torch import nn

from amata.batch import Batch
from amata.distributed import convert_sync_batchnorm
from amata.engine import EMA, EvalCopy, FastNet, PlainNet, backend_settings, compiler, make_net
from amata.engine.attack_copy import AttackCopy, find_foldable_batchnorms
from amata.engine.fused_conv import fused_conv, fused_conv_gradient, pack
from amata.engine.graphs import Graph
from amata.engine.halo_launch import available, tile_for
from amata.engine.passes import attack_objective, update_objective
from amata.errors import AmataError
from amata.losses import ce, smooth_ce
from amata.methods import AWP, Memory
from amata.models import build
from amata.recipes.schema import Optim
from amata.schedules import Control
from amata.seeds import Noise, generator
from amata.threat import L2
from amata.training.optim import make_optimizer
from amata.training.sizes import reduced
from tests.conftest import images, labels, small_net
from tests.nets import CosineHead, TinyViT
from tests.test_methods import ALL, BATCHES, TABLE, U, batch_of, sgd

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


class Foldable(nn.Module):
    """A BatchNorm that may be folded into a convolution, and one that may not."""

    foldable_batchnorms = (("conv", "bn"),)
    first_layer = "stem"

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.softplus(self.first(self.stem(x)))
        return self.head(nn.functional.softplus(self.bn(self.conv(x))).flatten(1))


def foldable(device: str, dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Foldable().to(device, dtype)


def moved(batch: Batch, device: str, dtype: torch.dtype) -> Batch:
    frame = batch.frame
    if frame is not None:
        frame = frame._replace(rows=frame.rows.to(device), columns=frame.columns.to(device))
    return batch._replace(x=batch.x.to(device, dtype), y=batch.y.to(device), frame=frame)


def trained(
    kind: type[PlainNet], name: str, device: str, dtype: torch.dtype, **options: Any
) -> tuple[nn.Module, PlainNet, Memory]:
    model, method = foldable(device, dtype), ALL[name][0]
    # Sign steps would amplify rounding errors in float32, so the ball is L2 there.
    if dtype == torch.float32:
        # TRADES needs more noise: without it its first gradient is zero.
        more: Any = {"noise": 0.1} if "trades" in name else {}
        inner = replace(method.base, ball=L2(0.3), **more)
        method = replace(method, method=inner) if isinstance(method, AWP) else inner
    net = kind(model, sgd(model), first_layer="stem", precision="fp32", **options)
    memory: Memory = {}
    for index in range(BATCHES):
        torch.manual_seed(index)
        # K and alpha change between batches
        u = Control(U.steps + index % 2, U.step_size / (1 + index % 2))
        method.step(
            net,
            moved(batch_of(index), device, dtype),
            u,
            generator(0, index, "method", device=device),
            memory,
        )
    return model, net, memory


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", ALL)
def test_a_fast_step_is_the_plain_step(
    name: str, mode: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain, reference, kept = trained(PlainNet, name, device, dtype, attack_mode=mode)
    fast, net, memory = trained(FastNet, name, device, dtype, attack_mode=mode, compiled=False)
    for (key, a), b in zip(fast.state_dict().items(), plain.state_dict().values(), strict=True):
        assert float((a.double() - b.double()).norm()) <= 1e-5 * float(b.double().norm()), key
    assert net.grad_evals == reference.grad_evals
    assert net.first_layer_evals == reference.first_layer_evals
    assert isinstance(net, FastNet)
    assert all(len(seen) == 1 for seen in net.variants.values()), "a graph for every step"
    assert float(net.last_loss) == pytest.approx(float(reference.last_loss), rel=1e-5)  # type: ignore[arg-type]
    for key, value in kept.items():
        assert float((memory[key].double() - value.double()).norm()) <= 1e-5 * max(
            float(value.double().norm()), 1e-3
        ), key


class CalledAgain:
    """What a CPU has instead of a CUDA graph: static inputs and outputs, and work that is done
    again in every call."""

    def __init__(
        self,
        work: Any,
        inputs: Any,
        *,
        mutated: Any = (),
        pool: Any = None,
        copy_inputs: bool = True,
    ) -> None:
        self.work = work
        self.inputs = [t.detach().clone() for t in inputs] if copy_inputs else list(inputs)
        before = [t.detach().clone() for t in mutated]
        for _ in range(2):
            self.outputs = work(*self.inputs)
        with torch.no_grad():
            for t, value in zip(mutated, before, strict=True):
                t.copy_(value)
            for static, given in zip(self.inputs, inputs, strict=True):
                static.copy_(given)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        for static, given in zip(self.inputs, tensors, strict=True):
            if static is not given:
                static[: len(given)].copy_(given)
        return self.replay()

    def replay(self) -> Any:
        flat = [self.outputs] if isinstance(self.outputs, torch.Tensor) else self.outputs or ()
        made = self.work(*self.inputs)
        for static, value in zip(flat, [made] if len(flat) == 1 else made or (), strict=True):
            if value is not None:
                static.data.copy_(value)
        return self.outputs


class OnCPU(FastNet):
    """The branches that a GPU takes, on a CPU."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.graphed = True
        self.gradients = {p: torch.zeros_like(p) for p in self.model.parameters()}


@pytest.mark.parametrize("name", ALL)
def test_what_is_recorded_on_a_gpu_is_the_plain_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("recorded", "fast", "ascent", "apply"):
        monkeypatch.setattr(f"amata.engine.{module}.Graph", CalledAgain)
    monkeypatch.setattr(Noise, "draw", lambda self, x, rows: self.std * self.whole(x)[rows])
    plain, _, _ = trained(PlainNet, name, "cpu", torch.float64)
    fast, net, _ = trained(OnCPU, name, "cpu", torch.float64, compiled=False)
    for (key, a), b in zip(fast.state_dict().items(), plain.state_dict().values(), strict=True):
        assert float((a.double() - b.double()).norm()) <= 1e-6 * float(b.double().norm()), key
    assert isinstance(net, OnCPU)
    assert net.graphs
    assert net.reached == set(net.gradients)


class AnySize(Foldable):
    """The same for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.softplus(self.first(self.stem(x)))
        return self.head(nn.functional.softplus(self.bn(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("name", [n for n, row in ALL.items() if "size" not in row[0].refuses])
def test_images_of_two_sizes_are_recorded_and_give_the_plain_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small images, larger ones, and small ones again, as after a return to an earlier epoch; a
    smaller last batch of each is rare. Nothing is recorded twice."""
    for module in ("recorded", "fast", "ascent", "apply"):
        monkeypatch.setattr(f"amata.engine.{module}.Graph", CalledAgain)
    monkeypatch.setattr(Noise, "draw", lambda self, x, rows: self.std * self.whole(x)[rows])
    states, recorded, method = [], [], ALL[name][0]
    for kind in (PlainNet, OnCPU):
        torch.manual_seed(0)
        model = AnySize().double()
        memory: Memory = {}
        options: Any = {} if kind is PlainNet else {"compiled": False}
        net: Any = kind(model, sgd(model), precision="fp32", **options)
        for index, size in enumerate([3, 3, 3, None, None, None, 3]):
            torch.manual_seed(index)
            batch = reduced(moved(batch_of(index), "cpu", torch.float64), size)
            if index in (2, 5):
                batch = batch._replace(x=batch.x[:5], y=batch.y[:5], ids=batch.ids[:5])
            net.image_size = size
            method.step(net, batch, U, generator(0, index, "method"), memory)
            if kind is OnCPU:
                recorded.append([len(net.graphs), len(net.ascent_graphs)])
        states.append(model.state_dict())
    for (key, a), b in zip(states[0].items(), states[1].values(), strict=True):
        assert float((a.double() - b.double()).norm()) <= 1e-6 * float(a.double().norm()), key
    once = "refresh" in net.graphs  # the only graph without images
    assert recorded[2] == recorded[1]
    assert recorded[5][0] - once == 2 * (recorded[2][0] - once)
    assert recorded[5][1] == 2 * recorded[2][1]
    assert recorded[6] == recorded[5]


class Standardised(nn.Conv2d):
    """A subclass of Conv2d that computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.weight - self.weight.mean(), self.bias, padding=1)


class UsedTwice(nn.Module):
    """One convolution under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 1, 3, padding=1)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Standardised(1, 3, 3, padding=1),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 3, 3)),
        UsedTwice,
        lambda: nn.Conv2d(1, 3, 3, padding="same"),
        lambda: nn.Conv2d(1, 3, 3, stride=2, bias=False),
        lambda: nn.Conv2d(1, 3, (3, 5), padding=(2, 1)),
        lambda: nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"),
    ],
)
def test_the_attack_copy_computes_the_same_for_unusual_layers(layer: Any) -> None:
    model = nn.Sequential(layer(), nn.Flatten(), nn.LazyLinear(5)).double()
    x, y = images(4).double(), labels(4)
    model(x)
    attacked = AttackCopy(model, train_mode=False, dtype=torch.float64, tensor_core_layers=True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.3)
    attacked.refresh()
    found = []
    for net in (model.eval(), attacked.model):
        leaf = x.clone().requires_grad_()
        z = net(leaf)
        found += [z, torch.autograd.grad(ce(z, y).sum(), leaf)[0]]
    assert found[1].abs().max() > 0
    assert torch.allclose(found[0], found[2], atol=1e-10)
    assert torch.allclose(found[1], found[3], atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TinyViT, CosineHead])
def test_the_attack_copy_computes_the_same_for_networks_of_other_kinds(kind: Any) -> None:
    """Widths that are no multiples of eight, so that layers are padded."""
    torch.manual_seed(0)
    model = kind().double()
    attacked = AttackCopy(model, train_mode=False, dtype=torch.float64, tensor_core_layers=True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.3)
    attacked.refresh()
    x, found = torch.rand(3, 3, 8, 8, generator=generator(0), dtype=torch.float64), []
    for net in (model.eval(), attacked.model):
        leaf = x.clone().requires_grad_()
        z = net(leaf)
        found += [z, torch.autograd.grad(ce(z, torch.arange(3)).sum(), leaf)[0]]
    assert found[0].shape == found[2].shape == (3, 5)
    assert found[1].abs().max() > 0
    assert torch.allclose(found[0], found[2], atol=1e-10)
    assert torch.allclose(found[1], found[3], atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [TinyViT, CosineHead])
@pytest.mark.parametrize("name", TABLE)
def test_a_fast_step_is_the_plain_step_of_networks_of_other_kinds(
    name: str, kind: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    trained = []
    for engine in (PlainNet, FastNet):
        torch.manual_seed(0)
        model = kind(in_channels=1, classes=4).to(device, torch.float64)
        before = [p.detach().clone() for p in model.parameters()]
        # On a GPU Muon works in bf16, which magnifies rounding errors.
        chosen = Optim(name="muon" if device == "cpu" else "sgd", lr=0.01)
        optimizer = make_optimizer(model, chosen, (1, 8, 8))
        net = engine(model, optimizer, precision="fp32")
        memory: Memory = {}
        for index in range(2):
            x = images(4, seed=index, side=8).to(device, torch.float64)
            batch = Batch(x, labels(4).to(device), torch.arange(4), 4)
            rng = generator(0, index, "method", device=device)
            TABLE[name][0].step(net, batch, Control(2, 0.05), rng, memory)
        trained.append(model)
        assert not all(map(torch.equal, model.parameters(), before))
    for a, b in zip(*(m.parameters() for m in trained), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


class CountingBackend:
    """Runs what Dynamo traced, and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        return module.forward


@pytest.mark.parametrize("name", ["trades", "nuat", "free"])
def test_a_second_network_of_the_same_structure_compiles_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = CountingBackend()
    monkeypatch.setattr(compiler, "BACKEND", backend)
    counts, method = [], ALL[name][0]
    for run in range(3):
        model = foldable("cpu", torch.float32)
        with torch.no_grad():
            next(model.parameters()).mul_(1 + run)
        net = FastNet(model, sgd(model), precision="fp32", loss=smooth_ce(0.1), compiled=True)
        for index in range(2):  # the second step refreshes the attack copy
            u = Control(1 + run, 0.01 / (1 + index))
            batch = moved(batch_of(index), "cpu", torch.float32)._replace(epoch=run)
            method.step(net, batch, u, generator(0, index, "method"), {})
        counts.append(backend.graphs)
        del net, model
        gc.collect()  # compiled code must not depend on a network that is gone
    # The objective of the attack, its step, the refresh and the update; free only updates.
    assert counts == [1 if name == "free" else 4] * 3


@pytest.mark.parametrize("optim", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("name", ["pgd", "atta", "fgsm-pgi"])
def test_training_after_a_warm_up_gives_the_same_bytes(
    name: str, optim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BACKEND", CountingBackend())
    states: list[Any] = []
    values: list[list[torch.Tensor]] = []
    method = ALL[name][0]
    for times in (0, 1):
        model = foldable("cpu", torch.float32)
        optimizer = make_optimizer(model, Optim(name=optim, lr=0.01), (1, 6, 6))
        ema = EMA(model, 0.9)
        net = FastNet(model, optimizer, precision="fp32", ema=ema, compiled=True)
        memory: Memory = {}
        torch.manual_seed(5)
        for index in range(2):
            for _ in range(times):
                dummy = moved(batch_of(7), "cpu", torch.float32)
                net.warm_up(method, dummy, Control(1, 0.3))
            batch = moved(batch_of(index), "cpu", torch.float32)
            method.step(net, batch, Control(2, 0.01), generator(0, index, "method"), memory)
        counters = (net.grad_evals, net.updates, net.ema.steps if net.ema else 0)
        moments = [
            v for p in model.parameters() for v in optimizer.state[p].values() if v is not None
        ]
        tensors = [*model.state_dict().values(), *ema.model.state_dict().values(), *moments]
        gradients = [p.grad is None for p in model.parameters()]
        states.append((counters, gradients, torch.rand(3).tolist(), float(net.last_loss)))  # type: ignore[arg-type]
        values.append([*map(torch.clone, tensors), *memory.values()])
    assert states[0] == states[1]
    assert len(values[0]) == len(values[1])
    assert all(map(torch.equal, *values))


@pytest.mark.skipif(
    not hasattr(functorch, "autograd_cache_allow_custom_autograd_functions"),
    reason="torch 2.7 compiles again in every process",
)
def test_compiled_attacks_and_updates_can_be_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch._aot_autograd.autograd_cache import check_cacheable

    checked = list[Any]()

    def backend(module: Any, inputs: Any) -> Any:
        check_cacheable(module)  # raises if torch's cache would skip it
        checked.append(module)
        return module.forward

    monkeypatch.setattr(compiler, "BACKEND", backend)
    model = build("lenet", in_channels=1, classes=4, seed=0)
    attacked = AttackCopy(
        model, train_mode=False, dtype=torch.bfloat16, tensor_core_layers=True
    ).model
    x, y = torch.rand(4, 1, 28, 28), labels(4)
    with compiler.compiling():
        compiler.compiled(attack_objective)(attacked, ce, True, x.clone().requires_grad_(), y)
        compiler.compiled(update_objective)(model, ce, None, True, (x,), y)
    assert len(checked) == 2


def failing_backend(module: Any, inputs: Any) -> Any:
    raise RuntimeError("no kernel for this")


class Breaks(Foldable):
    """Random, with statistics, and unknown to Dynamo: what a failed attempt changes is restored."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(x, 0.1, self.training))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_model_that_cannot_be_compiled_trains_the_same_numbers(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BACKEND", failing_backend)
    trained, said = [], list[str]()
    for compile_ in (True, False):
        torch.manual_seed(0)
        model = Breaks()
        net = FastNet(model, sgd(model), precision="fp32", attack_mode=mode, compiled=compile_)
        net.note = said.append
        for index in range(2):
            torch.manual_seed(index)
            batch = moved(batch_of(index), "cpu", torch.float32)
            ALL["pgd"][0].step(net, batch, Control(2, 0.01), generator(0, index, "method"), {})
        trained.append(model.state_dict())
        assert net.compiled is False
    assert len(said) == 1
    assert "torch.compile fails for this model" in said[0]
    assert "no kernel for this" in said[0]
    for key, value in trained[0].items():
        assert torch.equal(value, trained[1][key]), key


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "wrn-10-1", "lenet"])
def test_a_folded_copy_gives_the_same_logits_and_input_gradients(name: str, padded: bool) -> None:
    args = {"stem": "small"} if name == "resnet18" else {}
    side, channels = (28, 1) if name == "lenet" else (32, 3)
    model = build(name, in_channels=channels, classes=10, args=args, seed=1).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            generator_ = torch.Generator().manual_seed(3)
            module.running_mean = (
                0.1 * torch.randn(module.num_features, generator=generator_).double()
            )
            module.running_var = (
                0.5 + torch.rand(module.num_features, generator=generator_).double()
            )
    attacked = AttackCopy(model, train_mode=False, dtype=torch.float64, tensor_core_layers=padded)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    attacked.refresh()
    x = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0)).double()
    y, gradients = torch.tensor([1, 2]), []
    assert len(attacked.chains) == (padded and name in ("preactresnet18", "wrn-10-1"))
    for fused in (None, False, True) if attacked.chains else (None, False):
        for chain in attacked.chains:
            chain.kernels = bool(fused)  # on a CPU the same operations, by PyTorch
        x_ = x.clone().requires_grad_()
        logits = (model.eval() if fused is None else attacked.model)(x_)
        gradients.append(torch.autograd.grad(ce(logits, y).sum(), x_)[0])
        assert torch.allclose(model(x), logits, atol=1e-9)
        assert torch.allclose(gradients[0], gradients[-1], atol=1e-9)
    expected = {"preactresnet18": 8, "resnet18": 20, "wrn-10-1": 3, "lenet": 0}[name]
    assert len(find_foldable_batchnorms(model)) == expected
    assert len(find_foldable_batchnorms(convert_sync_batchnorm(copy.deepcopy(model)))) == expected
    assert sum(isinstance(m, nn.BatchNorm2d) for m in attacked.model.modules()) == {
        "preactresnet18": 9,
        "wrn-10-1": 4,
    }.get(name, 0)


def test_a_loss_or_scale_that_changes_in_every_step_is_refused() -> None:
    model = small_net()
    x, y = images(4), labels(4)
    region = L2(0.3).around(x)
    calls: dict[str, Callable[[FastNet, int], Any]] = {
        "new loss function to net.backward": lambda net, step: net.backward(
            x, y, loss=lambda z, y: ce(z, y)
        ),
        "new loss function to net.input_grad": lambda net, step: net.input_grad(
            x, y, loss=lambda z, y: ce(z, y)
        ),
        "new loss function to net.ascent": lambda net, step: net.ascent(
            region, x, y, 1, 0.1, loss=lambda z, y: ce(z, y)
        ),
        "new scale to net.backward": lambda net, step: net.backward(x, y, scale=1 / (step + 1)),
    }
    for message, call in calls.items():
        net = FastNet(model, sgd(model), precision="fp32")
        for step in range(16):
            call(net, step)
        with pytest.raises(AmataError, match=message):
            call(net, 16)
    net = FastNet(model, sgd(model), precision="fp32")
    for step in range(20):  # parts of different sizes are not the method's doing
        net.part_weight = 1 / (step + 1)
        net.backward(x, y)


@pytest.mark.parametrize("name", [n for n in TABLE if n not in ("free", "nuat")])
def test_parts_of_a_batch_draw_what_the_whole_batch_draws(name: str) -> None:
    method, updated = ALL[name][0], []
    for count in (1, 3):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(32, 4))
        with torch.no_grad():
            for index, p in enumerate(model.parameters()):
                p.copy_(torch.randn(p.shape, generator=generator(index)))
        net = PlainNet(model.double(), sgd(model), first_layer="0")
        whole = moved(batch_of(0), "cpu", torch.float64)
        for part in whole.parts(count):
            net.part_weight = len(part.x) / len(whole.x)
            net.accumulating = int(part.ids[-1]) != int(whole.ids[-1])
            method.step(net, part, U, generator(0, "method"), {})
        updated.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(updated[0], updated[1], rtol=1e-9, atol=0)


def test_attacks_see_the_batchnorm_statistics_of_earlier_parts() -> None:
    gradients = []
    for kind in (PlainNet, FastNet):
        model = foldable("cpu", torch.float64)
        net = kind(model, sgd(model), precision="fp32")
        first, second = moved(batch_of(0), "cpu", torch.float64).parts(2)
        net.accumulating = True
        net.backward(first.x, first.y)
        net.apply()
        gradients.append(net.input_grad(second.x, second.y))
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-9)


def test_a_network_is_split_before_a_layer_that_works_in_place() -> None:
    costates = []
    for inplace in (False, True):
        model = small_net()
        model[1], model[2] = nn.ReLU(inplace=inplace), nn.Identity()
        torch.manual_seed(0)
        net = PlainNet(model, sgd(model), first_layer="0")
        costates.append(net.costate(images(), labels(), first=True))
    assert torch.equal(costates[0], costates[1])


def test_the_costate_is_the_gradient_at_a_zero_added_to_the_first_layers_output() -> None:
    model = foldable("cpu", torch.float64)
    net, x, y = PlainNet(model, sgd(model)), images(4).double(), labels(4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    added = net.first_layer.zero_to_add(x, net._autocast())
    assert added is not None
    assert all(m.training for m in model.modules()), "modes are restored"
    assert all(map(torch.equal, model.state_dict().values(), before.values()))
    handle = net.first_layer.module.register_forward_hook(lambda module, args, z: z + added)
    ce(model(x), y).mean().backward()
    handle.remove()
    torch.testing.assert_close(added.grad, net.costate(x, y, first=True))
    twice = nn.Sequential(layer := nn.Linear(4, 4), nn.ReLU(), layer)
    net = PlainNet(twice, sgd(twice), first_layer="0")
    assert net.first_layer.zero_to_add(torch.rand(2, 4), net._autocast()) is None


@pytest.mark.parametrize("on_device", [False, True])
def test_ema_averages_weights_and_copies_counters(on_device: bool) -> None:
    """With a weight that is a number, or a scalar on the device, as a CUDA graph needs it."""
    model = small_net()
    model.register_buffer("other", torch.zeros(3, dtype=torch.float64))
    ema, tensors = EMA(model, 0.15), model.state_dict()
    expected = tensors["0.weight"].clone()
    for decay in (0.1, 0.15):  # (1 + t) / (10 + t), then the decay itself
        tensors["0.weight"].add_(1)
        tensors["1.num_batches_tracked"].add_(3)
        tensors["other"].fill_(1)
        weight = ema.advance()
        ema.average(torch.tensor(weight) if on_device else weight)
        expected = decay * expected + (1 - decay) * tensors["0.weight"]
    averaged = ema.model.state_dict()
    torch.testing.assert_close(averaged["0.weight"], expected)
    torch.testing.assert_close(averaged["other"], torch.full_like(tensors["other"], 1 - 0.1 * 0.15))
    assert averaged["1.num_batches_tracked"] == 6


OPTIMIZERS = {
    "sgd": Optim(momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd without momentum": Optim(momentum=0, weight_decay=0.1, decay_all=False),
    "adamw": Optim(name="adamw", weight_decay=0.1),
    "muon": Optim(name="muon", nesterov=True, weight_decay=0.1),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attacks", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_that_an_engine_records_is_the_update(
    name: str, attacks: bool, device: str
) -> None:
    """The learning rate and the EMA's decay change in every step. Half-way the optimiser's state is
    reloaded, as in a rollback. Attacks see the new weights, also where they begin late."""
    found: list[list[torch.Tensor]] = []
    x, y = images(6).to(device), labels(6).to(device)
    for kind in (PlainNet, FastNet):
        model = foldable(device, torch.float32)
        optimizer, ema = make_optimizer(model, OPTIMIZERS[name]), EMA(model, 0.9)
        options: dict[str, Any] = {"compiled": False} if kind is FastNet else {}
        net = kind(model, optimizer, precision="fp32", ema=ema, **options)
        rng, logits = torch.Generator().manual_seed(5), []
        for index in range(8):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + index // 2)
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad.copy_(torch.randn(p.shape, generator=rng))
            net.apply()
            if index == 3:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                net.weights_changed()
            if attacks or index == 7:
                logits += [net.logits(x).clone(), net.input_grad(x, y).clone()]
        assert not any(bool(p.grad.any()) for p in model.parameters() if p.grad is not None)
        assert [g["lr"] for g in optimizer.param_groups] == [0.0125] * len(optimizer.param_groups)
        assert ema.steps == 8
        if kind is FastNet and device == "cuda":
            assert isinstance(net, FastNet)
            assert list(net.apply_graphs) == [attacks]
        found.append([*model.state_dict().values(), *ema.model.state_dict().values(), *logits])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3 if name == "muon" else 1e-5, rtol=1e-3)


def test_backend_settings_are_restored() -> None:
    def settings() -> tuple[bool, bool, bool]:
        return (
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    before = settings()
    with backend_settings(benchmark=True):
        assert settings() == (True, *before[1:])
        with suppress(KeyError), backend_settings(benchmark=False, deterministic=True):
            assert settings() == (False, True, True)
            raise KeyError
        assert settings() == (True, *before[1:])
    assert settings() == before
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        with backend_settings(benchmark=True, deterministic=True):
            pass
        assert settings()[1:] == (True, True)
        torch.use_deterministic_algorithms(True)
        with backend_settings(benchmark=True, deterministic=True):
            assert settings()[1:] == (True, True)
        with backend_settings(benchmark=True):
            assert settings()[1:] == (True, False), "the user's own setting stays"
        assert settings()[1:] == (True, False)
    finally:
        torch.use_deterministic_algorithms(before[1], warn_only=before[2])


def test_bf16_keeps_weights_and_losses_in_fp32() -> None:
    for kind in (PlainNet, FastNet):
        model = small_net()
        net = kind(model, sgd(model), precision="bf16")
        x, y = images(8), labels(8)
        assert net.logits(x).dtype == torch.float32
        exact = PlainNet(small_net(), sgd(small_net())).input_grad(x, y)
        rough = net.input_grad(x, y)
        assert (
            0.9
            < torch.nn.functional.cosine_similarity(exact.flatten(), rough.float().flatten(), dim=0)
            < 1
        )
        net.backward(x, y)
        net.apply()
        assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_engine_is_chosen_by_device_and_describes_itself() -> None:
    model = small_net()
    assert make_net(model, sgd(model)).describe() == "plain engine, fp32"
    assert (
        make_net(model, sgd(model), engine="fast").describe()
        == "fast engine, fp32, eager (no CUDA device)"
    )
    assert make_net(model, sgd(model), precision="bf16").describe() == "plain engine, bf16"


@pytest.mark.slow
def test_bench_prints_a_row_per_variant(amata: Any, tmp_path: Any) -> None:
    options = [
        "--batch",
        "8",
        "--steps",
        "2",
        "--seconds",
        "0.05",
        "--device",
        "cpu",
        "--json",
    ]
    called = amata("bench", "mnist5k-pgd", *options, "--out", tmp_path)
    assert called.code == 0, called.err
    rows = json.loads(called.out)["rows"]
    assert [r["variant"] for r in rows] == ["reference", "plain", "fast"]
    called = amata("bench", "mnist5k-pgd", "mnist5k-free", *options, "--variants", "amp", "--peers")
    installed = ["torchattacks"] if find_spec("torchattacks") else []
    assert [(r["recipe"], r["variant"]) for r in json.loads(called.out)["rows"]] == [
        *[("mnist5k-pgd", v) for v in ("amp", *installed, "fast_adversarial style")],
        ("mnist5k-free", "amp"),
    ]
    assert ("torchattacks is not installed" in called.err) == (not installed)
    assert "mnist5k-free: --peers times PGD" in called.err
    promised = (
        "variant method model batch steps seconds_per_epoch images_per_second tflops "
        "ceiling_share ratio_to_reference compile_seconds"
    )
    assert {*promised.split(), "peak_memory_bytes"} <= rows[0].keys()
    assert rows[0]["ratio_to_reference"] == 1
    assert rows[0]["seconds_per_epoch"] == pytest.approx(4000 / rows[0]["images_per_second"])
    assert len({round(r["tflops"] * r["seconds_per_step"], 12) for r in rows}) == 1, (
        "all variants are credited with the same work"
    )
    assert (tmp_path / "bench.svg").is_file()
    assert (
        "error: unknown variant 'warp'"
        in amata("bench", "mnist5k-pgd", "--variants", "warp", "--device", "cpu").err
    )
    assert "must be whole numbers" in amata("bench", "mnist5k-pgd", "--batch", "many").err


@pytest.mark.slow
def test_the_work_of_a_step_is_counted_from_the_network() -> None:
    from amata import recipes
    from amata.studies.bench_case import Case

    pgd = recipes.load("cifar10-pgd10")
    forward = 1.11e9  # of PreActResNet-18 on one image, in FLOPs
    assert Case(pgd, 4, ()).flops(Control(10, 0.01)) == pytest.approx(4 * 23 * forward, rel=0.01)
    free = recipes.load("cifar10-free")
    assert Case(free, 4, ()).flops(Control(3, 0.01)) == pytest.approx(4 * 9 * forward, rel=0.01)


@pytest.mark.parametrize("device", DEVICES)
def test_an_eval_copy_gives_the_same_logits_and_gradients(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = foldable(device, torch.float64).eval()
    fast = EvalCopy(model)
    for n in (3, 16, 40, 17):
        x, y = images(n, seed=n).to(device, torch.float64), labels(n, seed=n).to(device)
        found = []
        for net in (model, fast):
            leaf = x.clone().requires_grad_()
            z = net(leaf)
            found += [z, torch.autograd.grad(ce(z, y).sum(), leaf)[0]]
        assert torch.allclose(found[0], found[2], atol=1e-9)
        assert torch.allclose(found[1], found[3], atol=1e-9)
    assert all(p.grad is None for p in model.parameters())


# On a GPU only

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def blobs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of noisy images, each around its own pattern."""
    rng = generator(seed, "blobs", device="cuda")
    patterns = torch.rand(
        10, 3, 8, 8, generator=generator("patterns", device="cuda"), device="cuda"
    )
    y = torch.randint(10, (n,), generator=rng, device="cuda")
    noise = torch.rand(n, 3, 32, 32, generator=rng, device="cuda")
    return 0.3 * nn.functional.interpolate(patterns, 32)[y] + 0.7 * noise, y


def curve(kind: type[PlainNet], precision: str, seed: int, steps: int = 200) -> torch.Tensor:
    from amata.methods import PGD
    from amata.threat import Linf

    model = build("preactresnet18", in_channels=3, classes=10, seed=seed).cuda()
    net = kind(model, torch.optim.SGD(model.parameters(), 0.05, 0.9), precision=precision)  # type: ignore[arg-type]
    losses = []
    for index in range(steps):
        x, y = blobs(128, 1000 * seed + index)
        u = Control(1 + index // 100, 8 / 255)
        PGD(ball=Linf(8 / 255)).step(
            net, Batch(x, y, torch.arange(128)), u, generator(seed, index, device="cuda"), {}
        )
        assert net.last_loss is not None
        losses.append(net.last_loss.clone())
    return torch.stack(losses).view(-1, 20).mean(1).cpu()


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", TABLE)
def test_no_method_waits_for_the_device_within_a_batch(name: str) -> None:
    model = foldable("cuda", torch.float32)
    net = FastNet(model, sgd(model), first_layer="stem", precision="fp32", compiled=False)
    batch = moved(batch_of(0), "cuda", torch.float32)
    batch, memory = batch._replace(ids=batch.ids.cuda()), Memory()
    rng = generator(0, device="cuda")
    try:
        for step in range(4):
            # the first steps record
            torch.cuda.set_sync_debug_mode("error" if step == 3 else "default")
            TABLE[name][0].step(net, batch, U, rng, memory)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
def test_an_old_graph_is_not_freed_while_another_is_recorded() -> None:
    x = torch.ones(4, device="cuda")
    old: list[Any] = [Graph(lambda t: t + 1, [x])]
    old.append(old)  # garbage that only the collector can free
    holder = [old]
    del old

    def work(t: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            holder.clear()
            _ = [[] for _ in range(1000)]  # would start the collector
        return t * 2

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        recorded = Graph(work, [x])
    finally:
        gc.set_threshold(*thresholds)
    assert recorded(x).tolist() == [2, 2, 2, 2]


@gpu
def test_a_graph_keeps_the_tensors_that_only_its_work_knows() -> None:
    x = torch.ones(1 << 20, device="cuda")

    def made() -> Graph:
        kept = torch.full_like(x, 3.0)  # like the unperturbed weights of awp
        return Graph(lambda t: t + kept, [x])

    recorded = made()
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros_like(x) for _ in range(8)]
    assert recorded(x).eq(4).all(), len(others)


class NotRecorded(Foldable):
    """Reads a value on the host, which a CUDA graph cannot record, and has dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.1, self.training)
        return super().forward(x * (1.0 if x.mean().item() > -1 else 2.0))


@gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_cannot_be_recorded_trains_the_same_numbers(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    trained, said = [], list[str]()
    for kind in (PlainNet, FastNet):
        torch.manual_seed(0)
        model = NotRecorded().to("cuda", torch.float64)
        options: Any = {"compiled": compiled} if kind is FastNet else {}
        net = kind(model, sgd(model), precision="fp32", **options)
        net.note = said.append
        for index in range(3):
            torch.manual_seed(index)
            batch = moved(batch_of(index), "cuda", torch.float64)
            rng = generator(0, index, "method", device="cuda")
            ALL["pgd"][0].step(net, batch, Control(2, 0.01), rng, {})
        trained.append(model.state_dict())
        net.warm_up(ALL["pgd"][0], batch, Control(1, 0.01))
    assert len(said) == 1
    assert "CUDA graphs cannot record this model" in said[0]
    for key, value in trained[0].items():
        assert torch.allclose(value, trained[1][key], rtol=1e-8, atol=1e-10), key


@gpu
@pytest.mark.parametrize("optim", ["sgd", "adamw", "muon"])
def test_a_warm_up_on_a_gpu_changes_nothing_and_leaves_nothing_to_compile(optim: Any) -> None:
    from torch._dynamo.utils import counters

    model = build("lenet", in_channels=3, classes=10, seed=0).cuda()
    optimizer = make_optimizer(model, Optim(name=optim, lr=0.01), (3, 28, 28))
    ema = EMA(model, 0.9)
    net = FastNet(model, optimizer, precision="bf16", ema=ema)
    x, y = blobs(64, 0)
    batch = Batch(x[..., :28, :28], y, torch.arange(64))
    before = copy.deepcopy([*model.state_dict().values(), *ema.model.state_dict().values()])
    state, method, u = torch.cuda.get_rng_state(), ALL["pgd"][0], Control(2, 0.01)
    net.warm_up(method, batch, u)
    after = [*model.state_dict().values(), *ema.model.state_dict().values()]
    assert all(map(torch.equal, before, after))
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    assert not any(v.any() for s in optimizer.state.values() for v in s.values() if v is not None)
    assert (net.grad_evals, net.updates, ema.steps, net.last_loss) == (0, 0, 0, None)
    assert torch.equal(state, torch.cuda.get_rng_state())
    compiled, recorded = counters["stats"]["unique_graphs"], set(net.graphs)
    for index in range(3):
        method.step(net, batch, u, generator(0, index, device="cuda"), {})
    assert counters["stats"]["unique_graphs"] == compiled
    assert set(net.graphs) - {"refresh"} == recorded  # the first real step records that alone


@gpu
def test_bf16_loss_curves_are_within_the_spread_of_seeds() -> None:
    plain = torch.stack([curve(PlainNet, "fp32", seed) for seed in range(4)])
    fast = torch.stack([curve(FastNet, "bf16", seed) for seed in range(4)])
    print(
        "plain fp32, mean and spread of 20-step windows",
        plain.mean(0).tolist(),
        (plain.amax(0) - plain.amin(0)).tolist(),
    )
    print("fast bf16, mean", fast.mean(0).tolist())
    assert plain[:, -1].mean() < 0.5 * plain[:, 0].mean(), "nothing was learned"
    spread = torch.maximum(plain.amax(0) - plain.amin(0), fast.amax(0) - fast.amin(0))
    assert ((fast.mean(0) - plain.mean(0)).abs() <= spread).all()


@gpu
@pytest.mark.parametrize("name", ["lenet", "preactresnet18", "resnet18"])
def test_tensor_core_layers_compute_the_same(name: str) -> None:
    side, channels = (28, 1) if name == "lenet" else (32, 3)
    model = build(
        name,
        in_channels=channels,
        classes=10,
        args={"stem": "small"} if name == "resnet18" else {},
        seed=0,
    ).cuda()
    rng = generator("layers", device="cuda")
    x, y = (
        torch.rand(64, channels, side, side, generator=rng, device="cuda"),
        torch.randint(10, (64,), generator=rng, device="cuda"),
    )
    exact = PlainNet(model, sgd(model)).input_grad(x, y)
    alike = []
    for kind in (PlainNet, FastNet):
        g = kind(model, sgd(model), precision="bf16").input_grad(x, y)
        alike.append(
            float(nn.functional.cosine_similarity(exact.flatten(1), g.float().flatten(1)).mean())
        )
    print(name, "cosine with fp32: plain bf16", alike[0], "fast bf16", alike[1])
    assert alike[1] > alike[0] - 0.005


hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or not available(torch.device("cuda")),
    reason="needs a Hopper GPU and Triton 3.6",
)


@hopper
@pytest.mark.parametrize(
    ("channels", "side"), [(64, 32), (128, 16), (256, 8), (512, 4), (64, 16), (512, 2)]
)
@pytest.mark.parametrize("batch", [1, 5, 128])
def test_the_kernels_compute_what_pytorch_computes(channels: int, side: int, batch: int) -> None:
    rng = generator("kernels", channels, batch)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    def picture() -> torch.Tensor:
        x = normal(batch, channels, side, side).bfloat16()
        return x.contiguous(memory_format=torch.channels_last)

    x, r, a, scale, shift = picture(), picture(), picture(), normal(channels), normal(channels)
    w = (normal(channels, channels, 3, 3) / (3 * channels**0.5)).bfloat16()
    w = w.contiguous(memory_format=torch.channels_last)
    assert tile_for(x, channels)
    for device in ("cpu", "cuda"):
        x, r, a, w, scale, shift = (t.to(device) for t in (x, r, a, w, scale, shift))
        found = [
            *fused_conv(x, w, shift.bfloat16(), None, None, False)[:1],
            *fused_conv(x, w, shift, scale, r, False)[:1],
            *fused_conv(x, w, shift, scale, r, True)[::2],
            fused_conv_gradient(x, w, pack(a), None, None),
            fused_conv_gradient(x, w, a, None, None),
            fused_conv_gradient(x, w, pack(a), scale, r),
        ]
        if device == "cpu":
            expected = found
    out, bits, _ = fused_conv(x, w, shift, scale, r, False)
    assert torch.equal(bits, pack(out))
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        assert torch.allclose(one.cpu().float(), other.float(), atol=0.05, rtol=0.02)


@gpu
def test_evaluation_on_a_compiled_copy_finds_the_same() -> None:
    from amata.evaluation import evaluate
    from amata.threat import Linf

    model = build("preactresnet18", in_channels=3, classes=10, seed=0).cuda()
    net = FastNet(model, torch.optim.SGD(model.parameters(), 0.05, 0.9), precision="bf16")
    for index in range(40):
        x, y = blobs(128, index)
        net.backward(x, y)
        net.apply()
    found = {}
    engines: tuple[Literal["plain", "auto"], ...] = ("plain", "auto")
    for engine in engines:
        attacks = ("clean", "pgd-10", "cw-pgd-10", "pgd-5-2")
        found[engine] = evaluate(
            model,
            blobs(500, 99),
            ball=Linf(8 / 255),
            attacks=attacks,
            batch_size=200,
            engine=engine,
        )
    for attack, result in found["plain"].items():
        # Restarts are spent on survivors, of which a rounding error may make one more.
        assert found["auto"][attack].grad_evals == pytest.approx(
            result.grad_evals, rel=0.02 if attack == "pgd-5-2" else 0
        )
        assert found["auto"][attack].accuracy == pytest.approx(
            result.accuracy, abs=0 if attack == "clean" else 0.02
        )
    print({k: (found["plain"][k].accuracy, found["auto"][k].accuracy) for k in found["auto"]})


@gpu
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nothing_is_compiled_or_recorded_again_when_k_alpha_and_the_radius_change(
    norm: str,
) -> None:
    from torch._dynamo.utils import counters

    from amata.methods import PGD
    from amata.threat import BALLS

    model = build("preactresnet18", in_channels=3, classes=10, seed=0).cuda()
    net = FastNet(model, sgd(model), precision="bf16")
    method, seen = PGD(ball=BALLS[norm](0.1)), []
    for index, (steps, factor) in enumerate([(2, 0.25), (3, 0.5), (10, 0.75), (0, 0.75), (1, 1)]):
        u, own = Control(steps, 0.1 / max(steps, 1)), method.scaled(factor)
        rng = generator(index, device="cuda")
        x, y = blobs(64, index)
        own.step(net, Batch(x, y, torch.arange(64)), u, rng, {})
        if index == 1:
            x, y = blobs(17, index)  # a smaller last batch is not compiled
            own.step(net, Batch(x, y, torch.arange(17)), u, rng, {})
        seen.append((counters["stats"]["unique_graphs"], len(net.graphs), len(net.ascent_graphs)))
    assert seen[0][0] > 0
    # the attack copy is first refreshed, and that recorded, in the second step
    assert seen[1:] == [seen[1]] * 4
    assert seen[1][2] == 1


@gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_results_outlive_later_calls_also_for_another_image_size() -> None:
    found: dict[type[PlainNet], list[torch.Tensor]] = {}
    for kind in (PlainNet, FastNet):
        model = build("preactresnet18", in_channels=3, classes=10, seed=0).cuda()
        optimizer = make_optimizer(model, Optim(name="muon", lr=0.01), (3, 32, 32))
        net, found[kind] = kind(model, optimizer, precision="fp32"), []
        for index in range(6):  # the update is recorded while images are small
            x, y = blobs(64, index)
            net.image_size = None if index > 2 else 16
            x = x if index > 2 else nn.functional.interpolate(x, 16)
            g = net.backward(x, y, wrt_input=True)
            net.apply()
            assert g is not None
            assert net.last_loss is not None
            first, second = net.logits(x), net.logits(1 - x)
            assert not torch.equal(first, second)
            found[kind] += [net.last_loss.clone(), g.abs().sum(), first.abs().sum()]
    values = [torch.stack(found[kind]).cpu() for kind in found]
    torch.testing.assert_close(*values, rtol=0.2, atol=0)  # overwritten, they would be far off


@gpu
def test_a_run_on_a_gpu_resumes_in_both_engines(tmp_path: Any) -> None:
    from amata import recipes
    from amata.runs import RunFolder
    from tests.toy import fit

    x, y = blobs(200, 0)
    options = [
        "train.epochs=2",
        "data.valid=0",
        "data.batch_size=64",
        "train.tensorboard=false",
        "model.name=preactresnet18",
    ]
    for engine in ("plain", "fast"):
        recipe = recipes.load("cifar10-amata", [*options, f"train.engine={engine}"])
        stop = recipes.load("cifar10-amata", [*options, f"train.engine={engine}"])
        net = build("preactresnet18", in_channels=3, classes=10, seed=0)
        fitted = fit(net, (x.cpu(), y.cpu()), None, recipe, run=tmp_path / engine)
        assert fitted.epochs[-1]["loss"] > 0
        run, stop = RunFolder.open(tmp_path / engine)
        (tmp_path / engine / "checkpoints" / "00002-0000000.json").unlink()
        again = fit(
            build("preactresnet18", in_channels=3, classes=10, seed=0),
            (x.cpu(), y.cpu()),
            None,
            stop,
            run=run,
        )
        assert again.epochs[-1]["loss"] == pytest.approx(fitted.epochs[-1]["loss"], rel=0.05)
