"""Training methods: one conformance table, and each method against a straight-line oracle that shares no code with it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amata.batch import Batch
from amata.engine import PlainNet, WeightAverage
from amata.losses import smooth_ce
from amata.methods import ERM, METHODS, PGD, Memory, Method
from amata.schedules import Constant, Control, Linear
from amata.seeds import generator
from amata.threat import Linf
from tests.conftest import images, labels, small_net

EPS = 0.1
U = Control(3, 0.05)


def oracle_erm(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, rng: torch.Generator) -> None:
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def oracle_pgd(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, rng: torch.Generator) -> None:
    x_adv = (x + EPS * (2 * torch.rand(x.shape, generator=rng) - 1)).clamp(x - EPS, x + EPS).clamp(0, 1)
    model.eval()
    for _ in range(U.steps):
        leaf = x_adv.clone().requires_grad_()
        F.cross_entropy(model(leaf), y).backward()
        assert leaf.grad is not None
        x_adv = torch.clamp(torch.clamp(x_adv + U.step_size * leaf.grad.sign(), x - EPS, x + EPS), 0, 1).detach()
    oracle_erm(model, optimizer, x_adv, y, rng)


# name -> (method, oracle, gradient evaluations per image under U). A new method is one row.
TABLE: dict[str, tuple[Method, Callable[..., None], int]] = {
    "erm": (ERM(ball=Linf(EPS)), oracle_erm, 1),
    "pgd": (PGD(ball=Linf(EPS)), oracle_pgd, U.steps + 1),
}
rows = pytest.mark.parametrize("name", TABLE)


def test_every_method_has_a_row() -> None:
    assert set(TABLE) == set(METHODS)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def train(method: Method, model: nn.Module, u: Control = U, batches: int = 4, **options: Any) -> PlainNet:
    net = PlainNet(model, sgd(model), **options)
    memory: Memory = {}
    for index in range(batches):
        torch.manual_seed(index)
        batch = Batch(images(seed=index), labels(seed=index), torch.arange(6))
        method.step(net, batch, u, generator(0, index, "method"), memory)
    return net


@rows
def test_a_method_equals_its_oracle_over_several_batches(name: str) -> None:
    method, oracle, _ = TABLE[name]
    ours, theirs = small_net(), small_net()
    train(method, ours)
    optimizer = sgd(theirs)
    for index in range(4):
        torch.manual_seed(index)
        oracle(theirs, optimizer, images(seed=index), labels(seed=index), generator(0, index, "method"))
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-6), key
    assert any(not torch.equal(a, b) for a, b in zip(ours.parameters(), small_net().parameters(), strict=True)), "nothing was learned"


@rows
def test_the_cost_meter_counts_gradient_evaluations(name: str) -> None:
    method, _, cost = TABLE[name]
    assert train(method, small_net(), batches=2).grad_evals == 2 * 6 * cost


@rows
def test_a_method_draws_only_from_its_generator_and_leaves_no_gradient(name: str) -> None:
    method, _, _ = TABLE[name]
    nets = [small_net(), small_net()]
    for seed, model in enumerate(nets):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        torch.manual_seed(seed)
        net = PlainNet(model, sgd(model))
        method.step(net, Batch(images(), labels(), torch.arange(6)), U, generator(7), {})
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_equal_bounds_train_bit_for_bit_like_a_constant() -> None:
    tau = 0.15
    nets = []
    for schedule in (Linear(k_min=3, k_max=3, tau=tau), Constant(steps=3, step_size=tau / 3)):
        model = small_net()
        for epoch in range(3):
            train(PGD(ball=Linf(EPS)), model, schedule(epoch, 3))
        nets.append(model)
    for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_pgd_without_steps_or_noise_is_erm() -> None:
    a, b = small_net(), small_net()
    train(PGD(ball=Linf(EPS), random_start=False), a, Control(0, 0.0))
    train(ERM(ball=Linf(EPS)), b)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_attack_mode_is_what_it_says(mode: Any) -> None:
    model = small_net()
    seen: list[bool] = []
    model[3].register_forward_pre_hook(lambda module, _: seen.append(module.training))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    net = PlainNet(model, sgd(model), attack_mode=mode)
    x, y = images(), labels()
    torch.manual_seed(0)
    g = net.input_grad(x, y)
    assert seen == [mode == "train"]
    assert torch.equal(norm.running_mean, before) == (mode == "eval")
    assert all(p.grad is None for p in model.parameters()), "an attack left weight gradients"
    reference = copy.deepcopy(model).train(mode == "train")
    torch.manual_seed(0)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(reference(leaf), y, reduction="sum"), leaf)
    torch.testing.assert_close(g, expected)
    seen.clear()
    net.backward(x, y)
    assert seen == [True], "weights are always trained in train mode"


def test_backward_accumulates_and_returns_the_input_gradient_when_asked() -> None:
    model = small_net(smooth=True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    net = PlainNet(model, sgd(model), loss=smooth_ce(0.1))
    x, y = images(), labels()
    assert net.backward(x, y) is None
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    g = net.backward(x, y, wrt_input=True)
    leaf = x.clone().requires_grad_()
    loss = F.cross_entropy(model(leaf), y, label_smoothing=0.1)
    (expected,) = torch.autograd.grad(loss, leaf)
    assert g is not None
    torch.testing.assert_close(g, expected)
    for p, first in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * first)
    assert net.last_loss is not None
    torch.testing.assert_close(net.last_loss, loss.detach())


def test_the_weight_average_follows_its_formula() -> None:
    model = nn.BatchNorm1d(2)
    average = WeightAverage(model, decay=0.5)
    expected = model.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            model.weight.add_(1)
            model.state_dict()["num_batches_tracked"].add_(1)
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.model.weight, expected)
    assert int(average.model.num_batches_tracked) == 20  # type: ignore[arg-type]
    assert not average.model.weight.requires_grad
