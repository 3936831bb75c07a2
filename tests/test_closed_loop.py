"""Training with a closed-loop schedule."""

import os
import signal
from pathlib import Path

import pytest
import torch

from amata import recipes
from amata.batch import Batch
from amata.distributed import current
from amata.engine import ProbeNet
from amata.errors import InputError
from amata.methods import PGD
from amata.reporter import BatchInfo, Reporter
from amata.runs import RunFolder
from amata.schedules import Control
from amata.threat import Linf
from amata.training import Interrupted
from amata.training.probing import probe
from tests.conftest import small_net
from tests.toy import fit, toy_data, toy_recipe, without_times

ADAPTIVE = ["schedule.name=adaptive", "schedule.tau=0.1", "schedule.k_max=6"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "budget"),
    [("pgd", 5.5), ("free", 4.5), ("yopo", 4.5), ("trades", 6.5), ("nuat", 6.5), ("fast", 5.5)],
)
def test_a_closed_loop_meets_its_budget_and_counts_its_probing(method: str, budget: float) -> None:
    net = small_net()
    net.first_layer = "0"  # type: ignore[assignment]
    recipe = toy_recipe(
        *ADAPTIVE,
        f"schedule.budget={budget}",
        f"method.name={method}",
        "train.epochs=8",
        "optim.lr=0.005",
        "train.guard=ignore",
        *(["method.inner=2"] if method == "yopo" else []),
    )
    fitted = fit(net, toy_data(192), None, recipe)
    assert fitted.epochs[-1]["grad_evals_per_image"] == pytest.approx(budget, rel=0.05)
    probes = fitted.epochs[-1]["probe_evals"]
    base = {"pgd": 1, "free": 0, "yopo": 0, "trades": 2, "nuat": 2, "fast": 1}[method]
    per_image = sum(k + base for k in (1, 2, 6))
    assert probes == 8 * 2 * 16 * per_image  # epochs, batches, their size
    assert fitted.grad_evals == probes + sum(192 * (row["steps"] + base) for row in fitted.epochs)
    assert [r[0] for r in fitted.epochs[0]["probed"]] == [1, 2, 6]


@pytest.mark.parametrize("method", ["fat", "dat"])
def test_a_closed_loop_has_no_budget_where_samples_stop_early(method: str) -> None:
    """On an untrained network most samples of FAT stop at once, and no budget could be met."""
    options = [*ADAPTIVE, f"method.name={method}", "train.epochs=2", "train.guard=ignore"]
    with pytest.raises(InputError, match=r"samples stop early; set schedule\.gamma instead"):
        fit(small_net(), toy_data(), None, toy_recipe(*options, "schedule.budget=4"))
    fitted = fit(small_net(), toy_data(), None, toy_recipe(*options, "schedule.gamma=0.04"))
    assert {row["gamma"] for row in fitted.epochs} == {0.04}


@pytest.mark.parametrize("price", ["budget=1", "gamma=0.04"])
def test_a_closed_loop_without_attack_steps_is_refused(price: str) -> None:
    """Its probes alone would cost more than the training."""
    recipe = toy_recipe(*ADAPTIVE, "method.name=erm", f"schedule.{price}")
    with pytest.raises(InputError, match="erm takes no attack steps, so an adaptive schedule"):
        fit(small_net(), toy_data(), None, recipe)


def test_every_candidate_is_probed_with_the_same_noise() -> None:
    x, y = toy_data(32)
    batches = [Batch(x[i : i + 16], y[i : i + 16], torch.arange(16)) for i in (0, 16)]
    one, other = probe(
        ProbeNet(small_net()),
        PGD(ball=Linf(0.05)),
        [Control(2, 0.02)] * 2,
        batches,
        {},
        place=(0, 0),
        ranks=current(),
    )
    assert one == other


def test_a_closed_loop_trains_like_its_own_choices_laid_down_beforehand() -> None:
    """Probing leaves no trace in the training: replayed as a piecewise schedule, the same controls
    give the same weights."""
    recipe = toy_recipe(*ADAPTIVE, "schedule.budget=6.5", "train.guard=ignore")
    fitted = fit(small_net(), toy_data(), None, recipe)
    stages = [[row["epoch"], row["steps"]] for row in fitted.epochs]
    assert len({k for _, k in stages}) > 1
    replay = recipes.parse(
        {**recipe.tables, "schedule": {"name": "piecewise", "tau": 0.1, "stages": stages}}, "replay"
    )
    again = fit(small_net(), toy_data(), None, replay)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            fitted.model.state_dict().values(), again.model.state_dict().values(), strict=True
        )
    )


def test_a_closed_loop_that_is_interrupted_ends_with_the_same_bytes(tmp_path: Path) -> None:
    class Stop(Reporter):
        def batch(self, info: BatchInfo) -> None:
            if info.epoch == 2 and info.batch == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = toy_recipe(
        *ADAPTIVE,
        "schedule.budget=5.5",
        "train.epochs=5",
        "train.tensorboard=false",
        "train.keep_epochs=true",
    )
    fit(small_net(), toy_data(192), toy_data(40), recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(
            small_net(),
            toy_data(192),
            toy_data(40),
            recipe,
            run=tmp_path / "broken",
            reporter=Stop(),
        )
    run, recipe = RunFolder.open(tmp_path / "broken")
    fit(small_net(), toy_data(192), toy_data(40), recipe, run=run)
    for name in (
        "last.safetensors",
        "model.safetensors",
        *(f"epochs/{e:05d}.safetensors" for e in range(6)),
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (
            tmp_path / "broken" / name
        ).read_bytes(), name
    rows = [
        [without_times(r) for r in RunFolder(tmp_path / name).epochs()]
        for name in ("whole", "broken")
    ]
    assert rows[0] == rows[1]
