"""Training on smaller images in early epochs: `sizes` of a schedule."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from amata import recipes
from amata.batch import Batch
from amata.errors import InputError, Interrupted
from amata.methods import METHODS, PGD
from amata.models import build
from amata.quantity import sizes
from amata.recipes.tables import tables_of
from amata.runs import RunFolder
from amata.schedules import Constant, Control, Exponential, Linear, Piecewise, planned_controls
from amata.threat import L2
from amata.training.batches import Expected, training_batches
from amata.training.sizes import reduced
from amata.training.time_plan import check_plannable
from amata.training.trainer import Trainer
from amata.training.work import epoch_work, planned_work
from tests.conftest import images, small_net
from tests.nets import HeadFirst
from tests.toy import StopAt, fit, toy_data, toy_recipe

HALF = ("schedule.sizes=[[0.5, 3]]", "train.guard=ignore")


def pooled(seed: int = 0) -> nn.Module:
    """A network for images of any size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HeadFirst(pooled=True)


def batch_of(x: Tensor) -> Batch:
    ids = torch.arange(len(x))
    return Batch(x, ids % 2, ids, len(x))


def test_half_the_side_is_the_mean_of_four_pixels() -> None:
    x = images(5, side=8).double()
    found = reduced(batch_of(x), 4).x
    four = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
    assert torch.equal(found, sum(four[1:], four[0]) / 4)
    thirds = reduced(batch_of(images(3, side=6)), 2).x
    assert torch.allclose(thirds, images(3, side=6).view(3, 1, 2, 3, 2, 3).mean((3, 5)))
    assert reduced(batch_of(x), None).x is x


@pytest.mark.parametrize(("side", "size"), [(32, 24), (32, 20), (28, 10), (7, 3), (5, 1), (9, 3)])
def test_smaller_images_stay_in_the_unit_interval(side: int, size: int) -> None:
    """Exactly: the check of the images allows for no rounding. Mirroring commutes with it."""
    for value in (0.0, 1.0):
        constant = torch.full((2, 3, side, side), value)
        assert torch.equal(reduced(batch_of(constant), size).x, constant[..., :size, :size])
    x = torch.rand(2, 3, side, side).to(memory_format=torch.channels_last)
    found = reduced(batch_of(x), size).x
    assert found.shape == (2, 3, size, size)
    mirrored = reduced(batch_of(x.flip(3)), size).x
    assert torch.allclose(mirrored.flip(3), found, atol=1e-6)


def test_schedules_anneal_the_size() -> None:
    pairs = [(0.25, 8), (0.5, 16)]
    schedules: list[Any] = [
        Constant(steps=2, step_size=0.1, sizes=pairs),
        Linear(k_min=1, k_max=3, tau=0.1, sizes=pairs),
        Exponential(k_min=1, k_max=3, tau=0.1, sizes=pairs),
        Piecewise(stages=[(0, 1), (2, 2.5)], tau=0.1, sizes=pairs),
    ]
    for schedule in schedules:
        found = [schedule(t, 8) for t in range(8)]
        assert [u.size for u in found] == [8, 8, 16, 16, None, None, None, None]
        assert {part.size for u in found[:2] for _, part in u.parts()} == {8}
        assert found[0].with_more(1).size == found[0].for_batch(1).size == 8
        plain = replace(schedule, sizes=())
        assert [u._replace(size=None) for u in found] == [plain(t, 8) for t in range(8)]
    tenths = Constant(steps=1, step_size=0.1, sizes=[(0.7, 8)])
    assert [tenths(t, 10).size for t in (6, 7)] == [8, None], "0.7 * 10 is above 7 in floats"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (16, r"sizes = 16 must be pairs of a share of the run and a side in pixels"),
        ([[0.3]], r"must be pairs of a share"),
        ([[0, 16]], r"sizes: share of the run = 0 must be above 0"),
        ([[0.3, 0]], r"sizes: side = 0 must be a whole number of at least 1"),
        ([[0.3, 8.5]], r"must be a whole number"),
        ([[1, 16]], r"rising shares below 1 and rising sides"),
        ([[0.5, 8], [0.3, 16]], r"rising shares below 1 and rising sides"),
        ([[0.3, 16], [0.5, 8]], r"rising shares below 1 and rising sides"),
        ([[0.1, 8], [0.2, 12], [0.3, 16], [0.4, 24]], r"4 pairs, .* compiled; give at most 3"),
    ],
)
def test_bad_sizes_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sizes(given, "sizes")
    with pytest.raises(InputError, match=f"schedule.sizes: .*{message}"):
        toy_recipe(f"schedule.sizes={given}")


def test_a_recipe_writes_and_reads_sizes() -> None:
    recipe = toy_recipe(*HALF)
    assert recipe.chosen["schedule"]["sizes"] == [[0.5, 3]]
    again = recipes.parse(tables_of(recipe), "again")
    assert again.fingerprint() == recipe.fingerprint() != toy_recipe(HALF[1]).fingerprint()
    assert "sizes" not in toy_recipe().chosen["schedule"]
    own = replace(recipe, schedule=lambda t, n: Control(1, 0.1, size=3 if t == 0 else None))
    assert own.tables["schedule"]["controls"][:2] == [[1, 0.1, 0.0, 1.0, 3], [1, 0.1]]


@dataclass(frozen=True, kw_only=True)
class Watched(PGD):
    """PGD that keeps the sides of its images, and its radii."""

    seen: ClassVar[list[tuple[int, float, float]]] = []

    def step(self, net: Any, batch: Any, u: Control, rng: Any, memory: Any) -> None:
        self.seen.append((batch.x.shape[-1], self.ball.eps, u.step_size))
        assert batch.frame is None or batch.frame.rows.shape[1] == batch.x.shape[-1]
        super().step(net, batch, u, rng, memory)


@pytest.mark.parametrize(("ball", "share"), [(None, 1.0), (L2(0.4), 0.5)], ids=["linf", "l2"])
def test_early_epochs_train_on_smaller_images(ball: Any, share: float) -> None:
    """The L2 ball shrinks like the side: the mean over blocks maps it to that ball."""
    recipe = toy_recipe(*HALF, "data.augment=crop-flip", "data.pad=1")
    watched = Watched(ball=ball or recipe.ball)
    watched.seen.clear()
    fitted = fit(pooled(), toy_data(32), None, replace(recipe, method=watched))
    eps = watched.ball.eps
    assert [side for side, _, _ in watched.seen] == [3] * 4 + [6] * 4
    assert [e for _, e, _ in watched.seen] == pytest.approx([share * eps] * 4 + [eps] * 4)
    plan = planned_controls(recipe.schedule, 4) or []
    alphas = [u.step_size * (share if u.size else 1) for u in plan]
    assert [alpha for _, _, alpha in watched.seen[::2]] == pytest.approx(alphas)
    assert [row["size"] for row in fitted.epochs] == [3, 3, 6, 6]
    assert all("eps" in row for row in fitted.epochs) == (share != 1)
    assert fitted.grad_evals == fit(pooled(), toy_data(32), None, toy_recipe()).grad_evals


def test_a_size_equal_to_the_datas_changes_nothing() -> None:
    found = []
    for more in ((), ("schedule.sizes=[[0.5, 6]]",)):
        model = pooled()
        fitted = fit(model, toy_data(32), None, toy_recipe(*more))
        assert not any("size" in row for row in fitted.epochs)
        found.append(model.state_dict())
    assert all(map(torch.equal, found[0].values(), found[1].values()))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_sizes_or_refuses_them(name: str) -> None:
    least = METHODS[name].min_steps
    more = ("model.first_layer=conv", f"method.name={name}", f"schedule.k_min={least}")
    recipe = toy_recipe(*HALF, *more, "train.epochs=2")
    if name in ("atta", "fgsm-pgi"):
        with pytest.raises(
            InputError, match=rf"{name} cannot use the size .* epoch 1; drop schedule.sizes"
        ):
            fit(pooled(), toy_data(32), None, recipe)
        return
    fitted = fit(pooled(), toy_data(32), None, recipe)
    assert [row["size"] for row in fitted.epochs] == [3, 6]


STATEFUL = {
    "pgd": (),
    "free": ("method.name=free", "schedule.k_min=1"),
    "previous": ("method.name=fast", "method.init=previous", "schedule.k_min=1"),
    "fixed": ("method.name=fast", "method.init=fixed", "schedule.k_min=1"),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_run_resumed_within_a_smaller_epoch_ends_with_the_same_bytes(
    tmp_path: Path, name: str
) -> None:
    more = ("train.tensorboard=false", "optim.ema=0.9", "train.epochs=2")
    recipe = toy_recipe(*HALF, *STATEFUL[name], *more)
    data = toy_data(112)
    fit(pooled(), data, None, recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(pooled(), data, None, recipe, run=tmp_path / "cut", reporter=StopAt(0, 3))
    run, again = RunFolder.open(tmp_path / "cut")
    fit(pooled(seed=9), data, None, again, run=run)
    last = [(tmp_path / kind / "last.safetensors").read_bytes() for kind in ("cut", "whole")]
    assert last[0] == last[1]


OBLONG = torch.rand(32, 1, 6, 8), toy_data(32)[1]


def _streamed() -> Any:
    x, y = toy_data(32)
    return [(x[i : i + 16], y[i : i + 16]) for i in (0, 16)]


@pytest.mark.parametrize(
    ("net", "data", "schedule", "message"),
    [
        (
            small_net,
            toy_data(32),
            [[0.5, 3]],
            r"the model takes images of 6 x 6 pixels only; .* global",
        ),
        (pooled, toy_data(32), [[0.5, 7]], r"has 7, and the images have 6 x 6 .* not enlarged"),
        (
            pooled,
            OBLONG,
            [[0.5, 3]],
            r"square images, .* 6 x 8",
        ),
        (pooled, _streamed(), [[0.5, 3]], r"size is known before training"),
        (
            pooled,
            toy_data(32),
            lambda t, n: Control(1, 0.1, size=t + 1),
            r"4 sizes of images, .* compiled; use at most 3",
        ),
        (pooled, toy_data(32), lambda t, n: Control(1, 0.1, size=0), r"size of the schedule = 0"),
    ],
)
def test_sizes_that_the_model_or_the_data_cannot_have_are_refused(
    net: Any, data: Any, schedule: Any, message: str
) -> None:
    given = callable(schedule)
    recipe = toy_recipe() if given else toy_recipe(f"schedule.sizes={schedule}")
    if given:
        recipe = replace(recipe, schedule=schedule)
    with pytest.raises(InputError, match=message) as error:
        fit(net(), data, None, recipe)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "wrn-10-1"])
def test_networks_for_small_images_take_other_sizes(name: str) -> None:
    model = build(name, in_channels=3, classes=10).eval()
    for size in (32, 24, 16, 8):
        assert model(torch.rand(1, 3, size, size)).shape == (1, 10)


def test_time_is_planned_by_pixels_and_gradients_by_images() -> None:
    schedule = Constant(steps=1, step_size=0.1, sizes=[(0.5, 3)])
    recipe, device = replace(toy_recipe(), schedule=schedule), torch.device("cpu")
    trainer = Trainer(pooled(), training_batches(toy_data(32), recipe, device), recipe, device)
    assert trainer.plan is not None
    assert epoch_work(recipe, trainer.plan, trainer.side) == [0.5, 0.5, 2, 2]
    work = planned_work(recipe, (1, 6, 6), 32)
    assert work is not None
    assert work.pixels == [0.25, 0.25, 1, 1]
    assert work.sizes == 2
    assert planned_work(toy_recipe(), (1, 6, 6), 32).pixels == ()  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"the schedule's sizes change it"):
        check_plannable(recipe)


@pytest.mark.parametrize(("attacked_from", "steps"), [(1, 2), (2, 0)])
def test_a_warm_up_prepares_the_size_of_the_first_epoch(
    attacked_from: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first attack on images of that size, if there is one."""
    stages = [(0, 0), (attacked_from, 2)]
    schedule = Piecewise(stages=stages, tau=0.1, sizes=[(0.5, 3)])
    recipe = replace(toy_recipe("train.engine=fast"), schedule=schedule)
    expected = Expected((1, 6, 6), 32)
    trainer = Trainer(pooled(), expected, recipe, torch.device("cpu"))
    seen: list[Any] = []
    monkeypatch.setattr(
        trainer.net, "warm_up", lambda method, batch, u: seen.append((batch.x.shape, u.steps))
    )
    trainer.warm_up(expected)
    assert seen == [((16, 1, 3, 3), steps)]
    assert trainer.net.image_size == 3
