"""Class weights: the loss of the updates against hand-written ones, in both engines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import amata
from amata.data import Arrays
from amata.engine import FastNet, PlainNet
from amata.errors import InputError
from amata.losses import ce
from amata.methods import FGSMPGI, NuAT
from amata.recipes.schema import Optim
from amata.runs import RunFolder
from amata.training.class_weights import class_weights
from tests.conftest import Linear, images, labels, small_net
from tests.test_engine import trained
from tests.test_methods import ALL
from tests.toy import toy_data, toy_recipe

CPU, FLOAT = torch.device("cpu"), torch.float64
WEIGHTS = torch.tensor([0.5, 3.0, 1.0, 0.2], dtype=FLOAT)


def weighted(z: Tensor, y: Tensor) -> Tensor:
    return WEIGHTS[y] * ce(z, y)


def assert_equal(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (key, one), other in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-7, atol=1e-9), key


@pytest.mark.parametrize("name", ALL)
def test_both_engines_weigh_the_losses_of_every_method(name: str) -> None:
    plain, _, _ = trained(PlainNet, name, "cpu", FLOAT, class_weights=WEIGHTS)
    fast, _, _ = trained(FastNet, name, "cpu", FLOAT, class_weights=WEIGHTS, compiled=False)
    none, _, _ = trained(PlainNet, name, "cpu", FLOAT)
    assert_equal(fast, plain)
    with pytest.raises(AssertionError):
        assert_equal(none, plain)
    method = ALL[name][0].base
    if not (method.own_loss or isinstance(method, FGSMPGI | NuAT)):  # weights of all its terms
        assert_equal(trained(PlainNet, name, "cpu", FLOAT, loss=weighted)[0], plain)


def test_a_weighted_update_is_the_hand_written_one() -> None:
    x, y = images(12).double(), labels(12)
    weights = torch.tensor([0.5, 3.0, 1.0, 0.2], dtype=FLOAT)
    ours, theirs = Linear(4).double(), Linear(4).double()
    net = PlainNet(ours, torch.optim.SGD(ours.parameters(), lr=0.3), class_weights=weights)
    for _ in range(3):
        net.backward(x, y)
        net.apply()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(theirs(x), y, weight=weights, reduction="none").mean().backward()
        optimizer.step()
    assert_equal(ours, theirs)
    with pytest.raises(InputError, match=r"class_weights need one label per image"):
        net.backward(x, F.one_hot(y, 4).double(), loss=lambda z, t: (z * t).sum(1))


def test_balanced_weights_give_every_class_the_same_sum() -> None:
    y = torch.tensor([0] * 7 + [2] * 2 + [3])  # no image of class 1
    found = class_weights(Optim(class_weights="balanced"), Arrays(images(10), y), CPU)
    assert found is not None
    sums = torch.zeros(4).index_add_(0, y, found[y])
    assert torch.allclose(sums, torch.tensor([10 / 3, 0.0, 10 / 3, 10 / 3]))
    assert class_weights(Optim(), None, CPU) is None
    with pytest.raises(InputError, match=r"'balanced' counts the labels .*; give a list"):
        class_weights(Optim(class_weights="balanced"), None, CPU)


def test_fit_and_recipes_take_weights_and_record_them(tmp_path: Path) -> None:
    x, y = toy_data(32)
    x, y = torch.cat([x, x[:16][y[:16] == 0]]), torch.cat([y, y[:16][y[:16] == 0]])  # 24 and 16
    settings: dict[str, Any] = {
        "method": amata.PGD(ball=amata.Linf(0.05)),
        "schedule": amata.Constant(steps=1, step_size=0.05),
        "epochs": 1,
        "device": "cpu",
        "progress": False,
    }
    exact = np.array([40 / 48, 40 / 32, 1, 1])
    choices: list[Any] = ["balanced", list(exact), None, "none", exact, torch.tensor(exact)]
    fits = [
        amata.fit(small_net(), (x, y), class_weights=given, run=tmp_path / str(i), **settings)
        for i, given in enumerate(choices)
    ]
    assert_equal(fits[0].model, fits[1].model)
    assert_equal(fits[2].model, fits[3].model)
    assert_equal(fits[1].model, fits[4].model)
    with pytest.raises(AssertionError):
        assert_equal(fits[0].model, fits[2].model)
    recorded = [
        RunFolder.open(tmp_path / str(i))[1].tables["optim"]["class_weights"] for i in range(6)
    ]
    same = [40 / 48, 40 / 32, 1, 1]
    assert recorded == ["balanced", same, "none", "none", same, same]
    assert toy_recipe("optim.class_weights=balanced").optim.class_weights == "balanced"
    assert toy_recipe('optim.class_weights=["1/2", 2]').optim.class_weights == [0.5, 2]
    assert toy_recipe("optim.class_weights=none").fingerprint() == toy_recipe().fingerprint()
    for given in ("even", "[1, 0]", "[]", "3"):
        with pytest.raises(InputError, match=r"optim.class_weights: .* must be 'none', 'balanced'"):
            toy_recipe(f"optim.class_weights={given}")
