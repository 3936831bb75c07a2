"""Optimisers and learning-rate schedules."""

from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amata.recipes.schema import Optim
from amata.training.optim import learning_rate, make_optimizer
from tests.conftest import small_net
from tests.toy import fit, toy_data, toy_recipe


def test_learning_rates() -> None:
    step = Optim(lr=1.0, lr_schedule="piecewise", milestones=[2, 4], factor=0.1)
    assert [learning_rate(step, t, 6) for t in (0, 1.99, 2, 3.9, 4, 5)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    within = Optim(lr=1.0, lr_schedule="piecewise", milestones=[1.5])
    assert [learning_rate(within, t, 2) for t in (1.4, 1.6)] == pytest.approx([1, 0.1])
    cycle = Optim(lr=1.0, lr_schedule="one-cycle", peak=0.25)
    assert [learning_rate(cycle, t, 8) for t in (0, 1, 2, 5, 8)] == pytest.approx(
        [0, 0.5, 1, 0.5, 0]
    )
    cosine = Optim(lr=1.0, lr_schedule="cosine", warmup=2)
    assert [learning_rate(cosine, t, 10) for t in (0, 1, 2, 6, 10)] == pytest.approx(
        [0, 0.5, 1, 0.5, 0], abs=1e-9
    )
    assert learning_rate(Optim(lr=0.3), 5, 10) == 0.3


@pytest.mark.parametrize("decay_all", [True, False])
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_weight_decay_can_spare_biases_and_norms(name: Any, decay_all: bool) -> None:
    model = small_net()
    groups = make_optimizer(
        model, Optim(name=name, weight_decay=0.1, decay_all=decay_all)
    ).param_groups
    decayed = {id(p) for g in groups if g["weight_decay"] == 0.1 for p in g["params"]}
    expected = {id(p) for p in model.parameters() if decay_all or p.dim() > 1}
    assert decayed == expected
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


def test_every_batch_is_trained_with_the_rate_at_its_middle() -> None:
    rates: list[float] = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    try:
        recipe = toy_recipe("train.epochs=2", "optim.lr_schedule=one-cycle", "optim.peak=0.5")
        fitted = fit(small_net(), toy_data(), None, recipe)
    finally:
        hook.remove()
    # six batches an epoch: up to 0.02 in the first, down to 0 in the second
    up = [0.02 * (batch + 0.5) / 6 for batch in range(6)]
    assert rates == pytest.approx([*up, *reversed(up)])
    assert [row["lr"] for row in fitted.epochs] == pytest.approx([up[-1], up[0]])
