"""Samples that stop one by one: the fast engine's buckets find the images of the plain loop."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amata.engine import FastNet, PlainNet, early_stop
from amata.engine.early_stop import EarlyStop, stop_or_step
from amata.methods.dat import not_maximal, not_stationary
from amata.methods.fat import friendly
from amata.seeds import Noise, Rows, generator
from amata.threat import Ball, Linf
from tests.conftest import images, labels
from tests.test_methods import sgd

BALL, STEPS, ALPHA, FULL = Linf(0.1), 9, 0.02, 16


class Repeated:
    """Work that is done again at every replay, as a recorded graph is."""

    def __init__(self, work: Callable[[], None], mutated: list[Tensor]) -> None:
        self.replay = work


def net() -> PlainNet:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Softplus(), nn.Linear(20, 4))
    with torch.no_grad():
        for index, p in enumerate(model.parameters()):
            p.copy_(torch.randn(p.shape, generator=generator(index)))
    return PlainNet(model.double(), sgd(model))


def leaving(ball: Any, x: Tensor, y: Tensor, g: Tensor, z: Tensor, left: Tensor) -> Any:
    """Stops after as many steps as `left` says."""
    return left > 0, left - 1


def slowing(
    ball: Ball, x: Tensor, y: Tensor, g: Tensor, z: Tensor, last: Tensor, before: Tensor
) -> tuple[Tensor, ...]:
    """Go on while the loss grows by more than half of the growth before."""
    now = torch.nn.functional.cross_entropy(z, y, reduction="none").double()
    return (now - last) > 0.5 * (last - before), now, last


def moving(
    ball: Ball, x: Tensor, y: Tensor, g: Tensor, z: Tensor, before: Tensor
) -> tuple[Tensor, ...]:
    """Go on while half of the pixels move."""
    return (x != before).flatten(1).double().mean(1) > 0.5, x


RULES: dict[str, tuple[Any, Callable[[Tensor, Tensor], tuple[Tensor, ...]], float | None]] = {
    "fat": (friendly, lambda x, y: (torch.full_like(y, 1),), 0.01),
    "dat": (
        not_stationary,
        lambda x, y: (x, torch.full_like(y, 0.4, dtype=x.dtype)),
        None,
    ),
    "dat, feasible gap": (
        not_maximal,
        lambda x, y: (x, torch.full_like(y, 0.4, dtype=x.dtype)),
        None,
    ),
    "all leave at once": (leaving, lambda x, y: (torch.full_like(y, 3),), 0.01),
    "one by one": (leaving, lambda x, y: (torch.arange(len(y)) // 3,), None),
    "state that shifts": (
        slowing,
        lambda x, y: tuple(torch.full_like(y, v, dtype=x.dtype) for v in (0, -9)),
        None,
    ),
    "the image before": (moving, lambda x, y: (x - 1,), None),
    "none leaves": (leaving, lambda x, y: (torch.full_like(y, 99),), 0.01),
}


@pytest.mark.parametrize("n", [FULL, 11, 2])
@pytest.mark.parametrize("lag", [1, 2, STEPS])
@pytest.mark.parametrize("name", RULES)
def test_buckets_find_the_images_of_the_plain_loop(
    name: str, lag: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_stop, "LAG", lag)
    rule, state_of, std = RULES[name]
    plain, evals = net(), torch.zeros((), dtype=torch.long)
    attack = EarlyStop(
        lambda x, y: plain._input_grad(x, y, plain.attack_loss),
        partial(stop_or_step, BALL, rule, std, torch.tensor(ALPHA, dtype=torch.float64)),
        evals,
        torch.zeros(FULL, 1, 6, 6, dtype=torch.float64),
        Repeated,
    )
    for seed in range(3):  # the same buckets for batch after batch
        x, y = images(n, seed=seed).double(), labels(n, seed=seed)
        start = BALL.around(x).start(generator(seed))
        # drawn for the whole batch, as on a GPU
        noises = [
            None if std is None else Noise(std, generator(seed, "noise"), Rows(0, n, n))
            for _ in range(2)
        ]
        expected = plain.ascent_while(
            BALL, x, start, y, STEPS, ALPHA, goes_on=rule, state=state_of(x, y), noise=noises[0]
        )
        found = attack(x, start, y, STEPS, state_of(x, y), noises[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert int(evals) == plain.grad_evals
    assert n < FULL or (int(evals) < 3 * STEPS * n) == (name != "none leaves")
    if name == "one by one" and lag < STEPS and n == FULL:
        assert len(attack.buckets) > 1, "the active samples should move to smaller buckets"


def test_samples_stop_alone_on_the_fast_engine_without_a_gpu() -> None:
    x, y = images(8), labels(8)
    found = []
    for kind in (PlainNet, FastNet):
        model = net().model
        engine = kind(model.float(), sgd(model), precision="fp32")
        found.append(
            engine.ascent_while(BALL, x, x, y, 5, ALPHA, goes_on=leaving, state=(torch.arange(8),))
        )
        assert engine.grad_evals == sum(min(k + 1, 5) for k in range(8))
    assert torch.equal(found[0], found[1])
