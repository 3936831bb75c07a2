"""Warm-up of the training radius, under every method."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amata.batch import Batch
from amata.engine import PlainNet
from amata.errors import InputError, Interrupted
from amata.methods import METHODS, Fast
from amata.recipes.schema import Train
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.schedules import Control
from amata.seeds import generator
from amata.studies.criterion import CriterionSettings, measure_strategies
from amata.threat import Linf
from tests.conftest import small_net
from tests.toy import StopAt, fit, stateful_recipe, toy_data, toy_recipe

METHOD: dict[str, tuple[str, ...]] = {name: (f"method.name={name}",) for name in METHODS}
METHOD["yopo"] += ("model.first_layer='0'", "method.inner=2")
METHOD["fast from a fixed start"] = ("method.name=fast", "method.init=fixed")
METHOD["fast from the batch before"] = ("method.name=fast", "method.init=previous")
WARM = ("train.epochs=2", "train.eps_warmup=1", "train.guard=ignore")
COLD = ("train.epochs=2", "train.guard=ignore", "threat.eps=0.025")


@pytest.mark.parametrize(
    ("warmup", "factors"), [(0, [1, 1, 1]), (2, [1 / 3, 2 / 3, 1]), (0.5, [2 / 3, 1, 1])]
)
def test_the_factor_rises_linearly(warmup: float, factors: list[float]) -> None:
    train = Train(eps_warmup=warmup)
    assert [train.eps_factor(epoch) for epoch in range(3)] == pytest.approx(factors)


@pytest.mark.parametrize("name", METHOD)
def test_the_first_epoch_is_that_of_a_smaller_ball(name: str) -> None:
    """Bit for bit: half the radius, half the step size."""
    own = METHOD[name]
    warm, cold = (
        fit(small_net(), toy_data(), None, toy_recipe(*own, *of, f"schedule.tau={tau}"))
        for of, tau in ((WARM, 0.1), (COLD, 0.05))
    )
    first, second = warm.epochs
    assert first["loss"] == cold.epochs[0]["loss"]
    assert first["step_size"] == cold.epochs[0]["step_size"]
    assert (first["eps"], second["eps"]) == (0.025, 0.05)
    assert second["step_size"] == 2 * cold.epochs[1]["step_size"]
    assert "eps" not in cold.epochs[0]
    if name != "erm":
        assert second["loss"] != cold.epochs[1]["loss"]


def test_attacks_fill_the_ball_of_their_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[float] = []
    ascent = PlainNet.ascent

    def watched(self: PlainNet, region: Any, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        x_adv = ascent(self, region, x, *rest, **options)
        moved.append(float((x_adv - region.x).abs().max()))
        return x_adv

    monkeypatch.setattr(PlainNet, "ascent", watched)
    warmup = ("train.epochs=4", "train.eps_warmup=2", "schedule.k_min=3")
    fit(small_net(), toy_data(), None, toy_recipe(*warmup, "train.guard=ignore"))
    reached = [max(part) for part in torch.tensor(moved).view(4, -1).tolist()]
    assert reached == pytest.approx([0.05 / 3, 0.1 / 3, 0.05, 0.05])


def test_a_fixed_start_grows_with_the_ball(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Tensor] = []

    def watched(self: PlainNet, region: Any, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        starts.append(x - region.x)
        return x

    monkeypatch.setattr(PlainNet, "ascent", watched)
    method, memory = Fast(ball=Linf(0.1), init="fixed"), dict[str, Tensor]()
    x, net = torch.full((1, 1, 6, 6), 0.5), small_net()
    batch = Batch(x, torch.tensor([0]), torch.tensor([0]))
    for factor in (0.25, 0.5, 1):
        engine = PlainNet(net, torch.optim.SGD(net.parameters()))
        method.scaled(factor).step(engine, batch, Control(1, 0.1), generator(0), memory)
    assert starts[0].abs().max() > 0.02
    for start, growth in zip(starts, (1, 2, 4), strict=True):
        torch.testing.assert_close(start, growth * starts[0])


@pytest.mark.parametrize("name", ["pgd", "atta", "fast"])
def test_an_interrupted_warm_up_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    recipe = (
        toy_recipe("train.tensorboard=false", "train.eps_warmup=2", "optim.ema=0.9")
        if name == "pgd"
        else stateful_recipe(name, "train.eps_warmup=2", "data.batch_size=12")
    )
    data = toy_data(48), toy_data(40)
    fit(small_net(), *data, recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(small_net(), *data, recipe, run=tmp_path / "cut", reporter=StopAt(1, 2))
    run, again = RunFolder.open(tmp_path / "cut")
    fit(small_net(seed=9), *data, again, run=run)
    last = [(tmp_path / kind / "last.safetensors").read_bytes() for kind in ("cut", "whole")]
    assert last[0] == last[1]


def test_a_closed_loop_probes_within_the_ball_of_its_epoch() -> None:
    adaptive = ["schedule.name=adaptive", "schedule.tau=0.1", "schedule.budget=5.5"]
    warm = fit(small_net(), toy_data(), None, toy_recipe(*adaptive, *WARM))
    cold = fit(small_net(), toy_data(), None, toy_recipe(*adaptive, *COLD, "schedule.tau=0.05"))
    values = [[value for _, _, value, _ in f.epochs[0]["probed"]] for f in (warm, cold)]
    assert values[0] == values[1]
    assert warm.epochs[0]["loss"] == cold.epochs[0]["loss"]


def test_criterion_refuses_a_radius_that_changed(tmp_path: Path) -> None:
    recipe = toy_recipe("train.tensorboard=false", "train.keep_epochs=true", *WARM)
    net: nn.Module = small_net()
    fit(net, toy_data(), None, recipe, run=tmp_path / "run")
    with pytest.raises(InputError, match="C compares controls under one eps"):
        measure_strategies(
            [RunFolder(tmp_path / "run")], CriterionSettings(), tmp_path / "c", Reporter()
        )
