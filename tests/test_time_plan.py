"""Runs within a given time: the plan as a function of prices, the measurement, and the clock."""

import copy
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from amata import SGD, recipes
from amata.errors import AmataError, InputError, Interrupted
from amata.methods import AWP, METHODS, PGD, NuAT
from amata.quantity import duration, in_time
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.schedules import Constant, Control, Exponential, Linear, Piecewise, planned_controls
from amata.training import Fitted, fit, prices, train_model, wall, within
from amata.training.batches import training_batches
from amata.training.checks import check_consistent
from amata.training.deadline import Deadline
from amata.training.prices import Measured, Sample, measure
from amata.training.state import TrainState
from amata.training.time_plan import Prices, TimePlan, plan_within
from amata.training.time_rule import read_rule, time_rule
from amata.training.trainer import Trainer
from amata.training.wall import WallClock
from amata.training.within import (
    Within,
    as_record,
    describe,
    in_lines,
    read_within,
    timed_controls,
)
from tests.conftest import small_net
from tests.toy import Notes, StopAt, toy_data, toy_recipe
from tests.toy import fit as train

RULE = replace(time_rule(), aim=1.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1h30m", 5400),
        ("90", 90),
        (2.5, 2.5),
        ("1.5s", 1.5),
        ("1.5h", 5400),
        (" 5m30s", 330),
    ],
)
def test_times_are_read_and_written(text: Any, seconds: float) -> None:
    assert duration(text, "within") == seconds
    assert duration(in_time(seconds), "within") == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "is not a time above 0; write 30s")
            for text in ("", "5 minutes", "m", "-3", "1m1h", "1e4", b"5s", [5])
        ),
        ("1h30", "'1h30' is not a time"),  # 30 what?
        ("5m30", "'5m30' is not a time"),
        ("0s", "'0s' is not a time above 0"),
        (0, "0 is not a time above 0"),
        (-3, "-3 is not a time above 0"),
        ("300000h", "'300000h' must be at most 1,000,000,000 s"),
        (None, "None is not a time"),
        (True, "True is not a time"),
    ],
)
def test_other_texts_are_no_time(text: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"within = .*{message}"):
        duration(text, "within")


# Recipe, prices of an update, a step and an epoch's rest, time -> K of every epoch.
DIGITS = ("mnist5k-amata", 1.0, 0.5, 0.5)
QUICK = ("cifar10-amata-quick", 1.0, 0.4, 0.0)
PLANS = [
    (DIGITS, 2.5, [2]),
    (DIGITS, 4.0, [5]),
    (DIGITS, 8.0, [2.111, 2.333, 2.555]),  # more epochs before a larger K
    (DIGITS, 20.0, [2.6, 3.8, 5, 6.2, 7.4]),
    (DIGITS, 60.0, [2.326 + t * 0.6528 for t in range(12)] + [10]),
    (QUICK, 1.81, [2]),
    (QUICK, 14.2, [1.005 + t * 0.01 for t in range(10)]),
    (QUICK, 20.0, [1.062 + t / 8 for t in range(8)] + [2] * 4),
    (("cifar10-nfgsm", 1.0, 0.0, 0.5), 20.0, [1] * 13),
    (("cifar10-erm", 1.0, 0.0, 0.0), 7.9, [0] * 7),
    (("mnist5k-pgd", 0.5, 0.05, 0.0), 5.01, [10] * 5),
    (("cifar10-pgd10", 0.5, 0.05, 0.0), 5.01, [10] * 5),  # a constant is not annealed
]


@pytest.mark.parametrize(("case", "within", "steps"), PLANS)
def test_the_plan_of_given_prices(
    case: tuple[str, float, float, float], within: float, steps: list[float]
) -> None:
    name, update, step, epoch = case
    plan = plan_within(recipes.load(name), Prices(update, step, epoch), within, RULE)
    assert plan.steps == pytest.approx(steps, abs=2e-3)
    train, planned = plan.recipe.train, plan.recipe.schedule
    assert (train.epochs, train.within) == (len(steps), within)
    assert [planned(t, train.epochs).steps for t in range(train.epochs)] == list(plan.steps)  # type: ignore[operator]


def test_plans_fill_the_time_and_never_exceed_it() -> None:
    rng = random.Random(0)
    known = [recipes.load(n) for n in ("mnist5k-amata", "cifar10-amata-quick", "mnist5k-pgd")]
    for _ in range(60):
        recipe = rng.choice(known)
        prices = Prices(
            10 ** rng.uniform(-1, 1), rng.uniform(0.01, 3), rng.uniform(0, 2), rng.uniform(0, 9)
        )
        within = prices.spent + prices.total([10]) + 10 ** rng.uniform(0, 2.5)
        plan = plan_within(recipe, prices, within, RULE)
        n = len(plan.steps)
        assert plan.seconds <= within + 1e-6
        low, high = plan.range or (max(plan.steps), max(plan.steps))
        full = min(plan.steps) == high  # and one more epoch does not fit
        assert not full or n == 300 or plan.seconds + prices.total([low]) > within
        assert full or plan.seconds > within - 1e-3 * n * prices.step - 1e-6
        assert list(plan.steps) == sorted(plan.steps)
        longer = plan_within(recipe, prices, 2 * within, RULE)
        assert longer.seconds >= plan.seconds
        assert plan.range != longer.range or len(longer.steps) >= n


@pytest.mark.parametrize(
    "schedule",
    [
        Linear(k_min=1, k_max=4, tau=0.1, tau_end=0.2),
        Linear(k_min=1, k_max=4, tau=0.1, eps_start=0.5, fractional=True),
        Exponential(k_min=1, k_max=4, tau=0.1, tau_end=0.2, eta=0.5),
    ],
)
@pytest.mark.parametrize("name", ["mnist5k-amata", "cifar10-amata-quick"])
def test_a_schedule_that_anneals_more_than_k_keeps_its_shape(
    name: str, schedule: Linear | Exponential
) -> None:
    recipe = replace(recipes.load(name, ["train.epochs=10"]), schedule=schedule)
    plan = plan_within(recipe, Prices(1.0, 0.5, 0.0), 50.0, RULE)
    planned: Any = plan.recipe.schedule
    epochs = len(plan.steps)
    assert plan.range is None
    assert 10 < epochs < 50
    for share in (0.0, 0.5, 1.0):  # the same control at the same share of the run
        n = 2 * (epochs // 2)
        now, own = planned(round(share * n), n), schedule(round(share * 10), 10)
        assert now.eps == own.eps
        assert now.steps == pytest.approx(own.steps, abs=0.51)
    assert timed_controls(recipe, RULE, keep_schedule=False)[0].steps == 1


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_trains_with_the_planned_steps(name: str) -> None:
    """No method is given a K that it refuses."""
    linear = Linear(k_min=METHODS[name].min_steps, k_max=3, tau=0.1)
    recipe = replace(toy_recipe(f"method.name={name}"), schedule=linear)
    plan = plan_within(recipe, Prices(1.0, 0.5, 0.0), 7.3, RULE)
    check_consistent(plan.recipe, planned_controls(plan.recipe.schedule, len(plan.steps)))


def test_the_last_validation_is_planned_for() -> None:
    """Also with `train.valid_every`, of which an epoch's price has only a share."""
    recipe, prices = recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.1, end=2.0)
    plan, other = (plan_within(recipe, p, 22.0, RULE) for p in (prices, replace(prices, end=0.0)))
    assert plan.steps == plan_within(recipe, replace(prices, end=0.0), 20.0, RULE).steps
    assert plan.validation == pytest.approx(0.1 * len(plan.steps) + 2)
    assert 21 < plan.seconds <= 22
    assert sum(other.steps) > sum(plan.steps)
    with pytest.raises(InputError, match="after about 5s"):
        plan_within(recipe, prices, 4.0, RULE)
    recipe, device = toy_recipe("train.valid_every=4"), torch.device("cpu")
    trainer = Trainer(small_net(), training_batches(toy_data(), recipe, device), recipe, device)
    valid = training_batches(toy_data(40), recipe, device).images  # type: ignore[attr-defined]
    found = measure(trainer, valid, timed_controls(recipe, RULE, keep_schedule=False), 0.01).prices
    assert 0 < found.end < 3 * found.epoch


def test_a_schedule_that_is_given_stays() -> None:
    recipe, prices = recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.5)
    plan = plan_within(recipe, prices, 20.0, RULE, keep_schedule=True)
    assert plan.recipe.schedule == recipe.schedule
    assert plan.steps == (2, 4, 6, 8)
    with pytest.raises(InputError, match="schedule chooses it during training"):
        plan_within(recipes.load("mnist5k-adaptive"), prices, 20.0, RULE)


def test_five_minutes_on_a_fast_gpu_are_at_most_100_epochs_with_more_steps() -> None:
    h200 = Prices(update=0.68, step=0.25, epoch=0.26, spent=20.6)
    quick = recipes.load("cifar10-amata-quick")
    plan = plan_within(quick, h200, 300.0, RULE)
    assert (len(plan.steps), plan.range) == (100, (2, 10))
    assert plan.recipe.optim.milestones == [98]
    assert 0.99 * 300 < plan.seconds <= 300
    assert list(plan.steps) == sorted(plan.steps)
    half = plan_within(quick, h200, 150.0, RULE)
    assert half.range == (2, 4)
    assert len(half.steps) < 100
    means = []
    for seconds in range(60, 420, 5):  # more time means more steps or more epochs
        longer = plan_within(quick, h200, seconds, RULE)
        means.append(sum(longer.steps))
        assert longer.seconds <= seconds + 1e-9
        assert len(longer.steps) <= 100
        assert len(longer.steps) == 100 or longer.seconds > 0.97 * seconds
    assert means == sorted(means)
    measured = Prices(update=0.686, step=0.25, epoch=0.042, spent=15.5)
    for seconds in range(60, 340, 5):  # later 100 epochs with K = 10 are too short
        assert plan_within(quick, measured, seconds, RULE).seconds > 0.95 * seconds
    (first, *_) = in_lines(plan, None)
    assert "(of epochs 1, 6, 11, ...: 2." in first
    assert first.count(",") < 30
    most = max(u.steps for u in timed_controls(quick, RULE, keep_schedule=False))
    assert most == 4, "a larger K need not be timed"


def test_at_a_large_radius_there_are_three_steps_or_more() -> None:
    for seconds, expected in [(40.0, (3, 4)), (60.0, (3, 4)), (350.0, (3, 10))]:
        large = recipes.load("cifar10-amata-quick", ["threat.eps=16/255"])
        plan = plan_within(large, Prices(0.7, 0.25, 0.2), seconds, RULE)
        assert plan.range == expected
        assert min(plan.steps) >= 3
        assert plan.recipe.schedule.tau > 16 / 255  # type: ignore[union-attr]


def test_too_little_time_names_the_least() -> None:
    recipe = recipes.load("mnist5k-amata")
    with pytest.raises(InputError, match=r"one epoch with K = 2 ends after about 13s"):
        plan_within(recipe, Prices(1.0, 0.5, 0.5, spent=10.0), 12.0, RULE)


def test_accuracy_is_expected_only_where_runs_are_stored() -> None:
    text = (
        "aim = 1.0\ntolerance = 0.02\nmost_epochs = 300\nleast_epochs = 5\n"
        '[fitted]\ndata = "cifar10"\nnorm = "linf"\nmethod = "pgd"\n'
        "[[band]]\nupdates = 0\nk_min = 1\nk_max = 3\ntau = 1.5\nepochs = 5\n"
        "[large]\neps = 0.04\nk_min = 3\nk_max = 4\n"
        '[expected]\nrecipe = "cifar10-amata-quick"\nattack = "pgd-20"\na = 0.5\nb = 1.0\n'
        "power = 1.0\nstep = 0.4\nhalf_width = 0.01\nfewest = 20.0\nmost = 50.0\n"
    )
    rule, prices = read_rule(text), Prices(1.0, 0.4, 0.0)

    def expected(within: float, name: str = "cifar10-amata-quick", *sets: str) -> Any:
        return plan_within(recipes.load(name, sets), prices, within, rule).accuracy

    attack, middle, low, high = expected(40.0)
    assert attack == "pgd-20"
    assert middle == pytest.approx(0.5 - 1 / 40, abs=1e-3)
    assert (low, high) == pytest.approx((middle - 0.01, middle + 0.01))
    assert expected(40.0, "cifar10-amata-quick", "train.seed=3", "eval.limit=10")
    assert expected(10.0) is None
    assert expected(400.0) is None
    assert expected(40.0, "cifar10-amata") is None
    assert expected(40.0, "cifar10-amata-quick", "threat.eps=4/255") is None
    for other in ("train.attack_mode=train", "train.eps_warmup=5", "optim.milestones=[1]"):
        assert expected(40.0, "cifar10-amata-quick", other) is None
    assert plan_within(recipes.load("mnist5k-amata"), prices, 40.0, rule).accuracy is None


@pytest.mark.parametrize(
    ("name", "within", "better"),
    [
        ("cifar10-amata-quick", 120.0, None),
        ("cifar10-amata-quick", 300.0, "cifar10-5m"),
        ("cifar10-5m", 300.0, None),
        ("cifar10-amata", 300.0, None),
    ],
)
def test_a_recipe_that_was_more_robust_in_this_time_is_named(
    name: str, within: float, better: str | None
) -> None:
    plan = plan_within(recipes.load(name), Prices(0.69, 0.25, 0.04, spent=18), within, RULE)
    said: list[str] = []
    describe(plan, said.append)
    for lines in (said, in_lines(plan, 10.0)):
        assert ("the recipe cifar10-5m was more robust" in lines[-1]) == (better is not None)
    assert as_record(plan)["better"] == better


def test_the_rule_of_the_package_is_sound() -> None:
    rule = time_rule()
    assert 0.9 < rule.aim < 1
    assert all(1 <= band.k_min <= band.k_max for band in rule.bands)
    assert [band.updates for band in rule.bands] == sorted({b.updates for b in rule.bands})


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("pgd", "plain"),
        ("atta", "plain"),
        ("fat", "fast"),
        ("free", "plain"),
        ("awp", "plain"),
        ("fgsm-pgi", "plain"),
    ],
)
def test_measuring_changes_nothing(name: str, engine: str) -> None:
    """Bit for bit: the trained weights, the rows and the counters."""
    sets = [f"train.engine={engine}", "optim.ema=0.9", "optim.name=muon"]
    sets += ["method.awp={gamma=0.01, warmup=1}"] if name == "awp" else [f"method.name={name}"]
    recipe, device = toy_recipe(*sets), torch.device("cpu")
    plain = train(small_net(), toy_data(), toy_data(40), recipe)
    net = small_net()
    trainer = Trainer(net, training_batches(toy_data(), recipe, device), recipe, device)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    valid = training_batches(toy_data(40), recipe, device).images  # type: ignore[attr-defined]
    controls = timed_controls(recipe, RULE, keep_schedule=False)
    evals = trainer.net.grad_evals
    measured = measure(trainer, valid, controls, 0.01)
    assert trainer.net.grad_evals == evals
    assert torch.equal(torch.get_rng_state(), before)
    found = measured.prices
    assert min(found.update, found.epoch) > 0
    assert measured.evaluation(recipe, 100) is not None
    fitted = train_model(net, toy_data(), toy_data(40), recipe, trainer=trainer)
    for key, value in plain.model.state_dict().items():
        assert torch.equal(value, fitted.model.state_dict()[key]), key
    timed = ("train_seconds", "data_seconds", "unix_seconds", "compile_seconds")
    for a, b in zip(plain.epochs, fitted.epochs, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {
            k: v for k, v in b.items() if k not in timed
        }


@pytest.mark.parametrize(("images", "price"), [(300, 4.0), (96, 1.5), (40, 1.0)])
def test_the_guard_is_timed_on_some_of_its_images(
    images: int, price: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU on a few, here 64, which take a second. Single steps are attacked in every epoch,
    two long ones in some."""
    seen = list[int]()
    monkeypatch.setattr(prices, "_seconds", lambda work: work() or 1.0)
    monkeypatch.setattr(
        prices, "guard_stats", lambda model, batches: seen.append(len(batches.images))
    )
    recipe, device = toy_recipe(), torch.device("cpu")
    batches = training_batches(toy_data(images), recipe, device)
    trainer = Trainer(small_net(), batches, recipe, device)
    monkeypatch.setattr(prices, "validate", lambda *_: None)
    short, single, long = Control(2, 0.02), Control(1, 0.1), Control(2, 0.05)
    assert prices._guard(trainer, None, [short], 20.0, 64) == (price, 0.0)
    assert set(seen) == {min(images, 64)}
    assert prices._guard(trainer, None, [single], 20.0, 64) == (price, price)
    found = prices._guard(trainer, None, [long], 20.0, 64)
    assert found == (price + min(price, 2.0) / 2, 0.0)


def test_epochs_with_single_steps_cost_more_where_the_guard_attacks_after_them() -> None:
    known = Prices(1.0, 0.5, 0.25, single=2.0)
    assert known.total([0, 1, 1.9, 2, 3]) == 5 + 0.5 * 7.9 + 5 * 0.25 + 2 * 2
    assert known.mean(1, 4) == pytest.approx(1 + 0.5 * 2.5 + 0.25 + 2 / 3)
    assert [known.mean(k, k) for k in (0, 1)] == [known.total([k]) for k in (0, 1)]
    assert known.mean(3, 3) == known.total([3])
    recipe = recipes.load("cifar10-amata-quick")
    # Single steps are about as dear as two: another epoch for the last second would lower all K.
    dear = Prices(0.682, 0.248, 0.041, spent=44.58, single=0.092)
    assert plan_within(recipe, dear, 59.4, RULE).steps == (2,) * 12
    for single in (0.0, 0.5, 2.0, 8.0):
        for time in (20, 60, 150):
            plan = plan_within(recipe, replace(known, single=single), time, RULE)
            assert time - known.total([2]) < plan.seconds <= time, (single, time)
            assert not follow(plan, drift(1.0, 1.0)).notes


@pytest.mark.parametrize(
    ("size", "within", "sizes"),
    [(96, 0.01, {8}), (96, 6000, {8, 16}), (96, 1e5, {8, 16, 32, 64, 96}), (4, 1e5, {4})],
)
def test_on_a_cpu_an_epoch_is_priced_by_its_images(
    size: int, within: float, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From parts of batches if time is short; the last batch may be smaller."""
    seen = set[int]()

    def time_batches(self: Trainer, batches: Any, u: Control, lr: float) -> float:
        images = [len(batch.x) for batch in batches]
        seen.update(images)
        return sum(images) * (1 + u.steps) / len(images)

    monkeypatch.setattr(Trainer, "time_batches", time_batches)
    recipe, device = toy_recipe(f"data.batch_size={size}"), torch.device("cpu")
    batches = training_batches(toy_data(100), recipe, device)
    trainer = Trainer(small_net(), batches, recipe, device)
    found = measure(trainer, None, [Control(1, 0.1), Control(3, 0.04)], within).prices
    assert (found.update, found.step) == pytest.approx((100, 100), rel=0.01)
    assert seen == sizes


@pytest.mark.parametrize("options", [("data.batch_size=32", "train.accumulate=8"), ()])
def test_batches_on_trial_are_large_enough_for_batchnorm(options: tuple[str, ...]) -> None:
    recipe, device = toy_recipe("data.batch_size=128", *options), torch.device("cpu")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(36), torch.nn.Linear(36, 2))
    trainer = Trainer(
        net, training_batches(toy_data(32 if options else 16), recipe, device), recipe, device
    )
    assert measure(trainer, None, [Control(1, 0.1), Control(3, 0.04)], 0.01).prices.update > 0


def test_no_plan_is_longer_than_its_time_however_dear_single_steps_are() -> None:
    rng, recipe = random.Random(0), recipes.load("mnist5k-amata", ["schedule.k_min=1"])
    for _ in range(300):
        known = Prices(1.0, rng.uniform(0.1, 1), rng.uniform(0, 0.5), single=rng.uniform(0, 10))
        time = known.total([1]) * 10 ** rng.uniform(0.1, 1.8)
        plan = plan_within(recipe, known, time, RULE)
        assert plan.seconds <= time * (1 + 1e-9)


@pytest.mark.parametrize(("nbytes", "saving"), [(1, 100.0), (10**15, 0.0)])
def test_checkpoints_that_are_too_large_for_every_epoch_cost_less(
    nbytes: int, saving: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard keeps a copy of every epoch all the same."""
    monkeypatch.setattr(prices, "_saving", lambda _: (100.0, 1000.0, nbytes))
    for guard, keeping in (("ignore", 0.0), ("rollback", 1000.0)):
        recipe, device = toy_recipe(f"train.guard={guard}"), torch.device("cpu")
        batches = training_batches(toy_data(), recipe, device)
        trainer = Trainer(small_net(), batches, recipe, device)
        found = measure(trainer, None, [Control(1, 0.1)], 0.01).prices
        assert saving + keeping <= found.epoch < saving + keeping + 50


def test_what_is_timed_is_an_epoch_after_awps_warm_up() -> None:
    """Its epochs cost less than those after it."""
    seen = set[int]()

    class Watch(PGD):
        def step(self, net: Any, batch: Any, *rest: Any) -> None:
            seen.add(batch.epoch)
            super().step(net, batch, *rest)

    recipe, device = toy_recipe("train.epochs=3"), torch.device("cpu")
    method = AWP(Watch(ball=recipe.ball), gamma=0.01, warmup=2)
    recipe = replace(recipe, method=method)
    batches = training_batches(toy_data(), recipe, device)
    trainer = Trainer(small_net(), batches, recipe, device)
    controls = timed_controls(recipe, RULE, keep_schedule=False)
    assert measure(trainer, None, controls, 0.01).prices.update > 0
    assert min(seen) == 2


class FakeClock(WallClock):
    now = 0.0

    def elapsed(self) -> float:
        return self.now


class Followed(NamedTuple):
    steps: list[float]
    """K of every epoch."""
    last: float
    """K of the last batch."""
    end: float
    notes: list[str]


def follow(plan: TimePlan, speed: Callable[[float], float], batches: int = 16) -> Followed:
    """A simulated run that takes `speed` times as long as priced, by the share of it that is
    done."""
    clock, state, notes = FakeClock(), TrainState(), list[str]()
    clock.now, epochs, k = plan.prices.spent, len(plan.steps), 0.0
    deadline, steps = Deadline(plan, RULE, clock), list[float]()
    for epoch in range(epochs):
        state.epoch, state.batch = epoch, 0
        deadline.follow(state, batches, notes.append)
        for batch in range(batches):
            k = (state.steps or plan.steps)[epoch]
            pace = speed((epoch + batch / batches) / epochs)
            clock.now += pace * plan.prices.training(k) / batches
            state.batch = batch + 1
            if deadline.is_due(state.batch, batches):
                deadline.follow(state, batches, notes.append)
        state.end_steps()
        steps.append((state.steps or plan.steps)[epoch])
        clock.now += speed((epoch + 1) / epochs) * plan.prices.once(steps[-1:])
    return Followed(steps, k, clock.now, notes)


def drift(first: float, last: float) -> Callable[[float], float]:
    return lambda done: first + (last - first) * done


def jump(first: float, last: float, at: float = 0.5) -> Callable[[float], float]:
    return lambda done: first if done < at else last


@pytest.mark.parametrize(
    ("speed", "off"),
    [
        (drift(1.0, 1.0), 0.001),
        (drift(1.3, 1.3), 0.05),
        (drift(0.85, 0.85), 0.05),
        (drift(0.85, 1.15), 0.05),
        (drift(1.15, 0.85), 0.05),
        (jump(1.0, 1.3), 0.05),
        (drift(0.7, 1.3), 0.07),  # a fast start has not raised K too far
        (drift(3.0, 3.0), None),
        (drift(0.2, 0.2), None),
    ],
)
@pytest.mark.parametrize("time", [33.0, 200.0])
def test_k_follows_the_clock(
    speed: Callable[[float], float], off: float | None, time: float
) -> None:
    """With few epochs, and with many."""
    prices = Prices(1.0, 0.5, 0.2, spent=3.0)
    plan = plan_within(recipes.load("mnist5k-amata"), prices, time, RULE)
    steps, _, end, notes = follow(plan, speed)
    if speed(0) == speed(1) == 1.0:
        assert tuple(steps) == plan.steps
    if off is None:
        assert 1 <= len(notes) <= 2  # again once it is twice as far off
    else:
        assert end == pytest.approx(time, rel=off)
    assert off is None or off > 0.05 or not notes
    assert steps == sorted(steps)
    assert 2 <= min(steps) <= max(steps) <= 10


def test_what_the_guard_adds_is_no_slow_machine() -> None:
    """Epochs that it repeats, and a step more from there on."""
    plan = plan_within(recipes.load("mnist5k-pgd"), Prices(1.0, 0.5, 0.2), 130.0, RULE)
    assert len(plan.steps) > 15
    clock, state, notes = FakeClock(), TrainState(), list[str]()
    deadline = Deadline(plan, RULE, clock)
    for done, epoch in enumerate((0, 1, 2, 3, 4, 4, 5, 6, 7)):
        state.epoch, state.extra_steps = epoch, int(done > 4)
        deadline.follow(state, 10, notes.append)
        clock.now += plan.prices.total([plan.steps[epoch] + state.extra_steps])
    assert all(seen == pytest.approx(said) for said, seen in deadline.recent)
    (note,) = notes
    assert "s after its time: epochs before took longer, or the collapse guard repeated" in note
    plan = plan_within(recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.2), 130.0, RULE)
    deadline, state = Deadline(plan, RULE, FakeClock()), TrainState(epoch=1, extra_steps=1)
    deadline.follow(state, 10, notes.append)
    assert sum(state.steps) < sum(plan.steps)  # the added step is paid for
    assert len(notes) == 1


def test_runs_end_on_time_unless_k_is_at_its_bound() -> None:
    """Speeds that drift or jump by up to 30%, one to thirty epochs."""
    rng = random.Random(1)
    known = [recipes.load(name) for name in ("mnist5k-amata", "cifar10-amata-quick")]
    on_time = 0
    for _ in range(120):
        prices = Prices(1.0, rng.uniform(0.1, 1), rng.uniform(0, 0.3), rng.uniform(0, 5))
        time = prices.spent + prices.total([2]) * 10 ** rng.uniform(0.1, 1.5)
        plan = plan_within(rng.choice(known), prices, time, RULE)
        first, last = rng.uniform(0.7, 1.3), rng.uniform(0.7, 1.3)
        speed = rng.choice([drift(first, last), jump(first, last, rng.random())])
        steps, k, end, _ = follow(plan, speed)
        assert plan.range is not None
        lowest, highest = plan.range
        assert lowest <= min(steps) <= max(steps) <= highest
        assert all(b > a - 2e-3 for a, b in pairwise(steps))
        if abs(end - time) <= 0.05 * time:
            on_time += 1
        elif end < time:
            assert k == highest
        else:
            assert k <= (steps[-2] if len(steps) > 1 else lowest) + 2e-3
    assert on_time > 70


def test_a_short_speed_up_does_not_raise_k_too_far() -> None:
    """One fast epoch among others that are as slow as was planned."""
    plan = plan_within(recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.2, spent=3.0), 110.0, RULE)
    n = len(plan.steps)
    for epoch in range(3, n - 2):
        fast = range(16 * epoch, 16 * (epoch + 1))
        ended = follow(plan, lambda done, fast=fast: 0.4 if round(16 * n * done) in fast else 1.0)  # type: ignore[misc]
        assert ended.end < 1.02 * 110


def test_a_slow_start_is_no_reason_for_a_note() -> None:
    plan = plan_within(recipes.load("cifar10-amata-quick"), Prices(1.0, 0.3, 0.2, 20.0), 29.0, RULE)
    assert len(plan.steps) == 6
    for at in (1 / 48, 1 / 12):  # one look at the clock, and several
        ended = follow(plan, jump(2.0, 1.0, at=at))
        assert not ended.notes
        assert ended.end == pytest.approx(29, rel=0.05)


def test_a_run_whose_k_cannot_change_is_only_told() -> None:
    plan = plan_within(recipes.load("cifar10-nfgsm"), Prices(1.0, 0.0, 0.0), 20.0, RULE)
    ended = follow(plan, drift(1.5, 1.5))
    assert tuple(ended.steps) == plan.steps
    assert len(ended.notes) == 1


def test_dear_first_epochs_do_not_tell_that_the_run_ends_late() -> None:
    """After epochs with single steps the guard attacks; later ones have more steps."""
    recipe = recipes.load("mnist5k-amata", ["schedule.k_min=1", "schedule.k_max=3"])
    known = Prices(0.1, 0.05, 0.05, single=1.0)
    plan = plan_within(recipe, known, 30.0, RULE, keep_schedule=True)
    assert (plan.steps[0], plan.steps[-1]) == (1, 3)
    ended = follow(plan, drift(1.0, 1.0))
    assert not ended.notes
    assert ended.end == pytest.approx(plan.seconds)


def test_time_that_the_plan_leaves_is_no_reason_for_a_note() -> None:
    h200 = Prices(update=0.68, step=0.25, epoch=0.26, spent=20.6)
    plan = plan_within(recipes.load("cifar10-amata-quick"), h200, 600.0, RULE)
    assert plan.seconds < 400
    for slower in (1.0, 1.5):
        assert not follow(plan, drift(slower, slower)).notes
    assert "s before its time" in follow(plan, drift(0.7, 0.7)).notes[0]
    assert "s after its time" in follow(plan, drift(2.5, 2.5)).notes[0]


class Rising(Deadline):
    """A clock that changes K in the second epoch and within the third, whatever the time."""

    def __init__(self) -> None:
        pass

    def is_due(self, batch: int, batches: int) -> bool:
        return batch == 1

    def follow(self, state: TrainState, batches: int, note: Any) -> None:
        if (state.epoch, state.batch) == (1, 0):
            state.change_steps([0, 1.5, 2, 3])
        if (state.epoch, state.batch) == (2, 1):
            state.change_steps([0, 1.5, 3, 3])


def test_changed_steps_are_recorded_and_resumed(tmp_path: Path) -> None:
    quiet = toy_recipe("train.tensorboard=false")
    recipe = replace(quiet, schedule=Piecewise(stages=[(0, 0)], tau=0.1))
    data = toy_data(48), toy_data(40)

    def timed(name: str, reporter: Reporter | None = None) -> Fitted:
        run = RunFolder.create(tmp_path / name, recipe)
        options: Any = {"run": run, "reporter": reporter, "deadline": Rising()}
        return train_model(small_net(), *data, recipe, **options)

    whole = timed("whole")
    assert [row["steps"] for row in whole.epochs] == [0, 1.5, 2.667, 3]  # of three batches
    assert [row["step_size"] * max(row["steps"], 1) for row in whole.epochs] == pytest.approx(
        [0.1] * 4
    )
    assert [row["grad_evals"] for row in whole.epochs] == [48, 48 + 48 + 64, 336, 528]
    with pytest.raises(Interrupted):
        timed("cut", StopAt(2, 2))  # after K has changed within the epoch
    run, again = RunFolder.open(tmp_path / "cut")
    train(small_net(seed=9), *data, again, run=run)  # without a clock
    last = [(tmp_path / kind / "last.safetensors").read_bytes() for kind in ("cut", "whole")]
    assert last[0] == last[1]
    assert [row["steps"] for row in run.epochs()] == [0, 1.5, 2.667, 3]


class Slow(Deadline):
    """A clock that keeps K low from the second epoch on."""

    def __init__(self) -> None:
        pass

    def is_due(self, batch: int, batches: int) -> bool:
        return False

    def follow(self, state: TrainState, batches: int, note: Any) -> None:
        if state.epoch == 1:
            state.change_steps([1, 1, 1, 1])


@pytest.mark.parametrize(("epoch", "batch", "steps"), [(1, 3, [1, 1, 3, 4]), (2, 1, [1, 1, 1, 4])])
def test_a_resumed_run_takes_the_k_of_its_plan_again(
    epoch: int, batch: int, steps: list[int], tmp_path: Path
) -> None:
    """What the clock chose in a slow moment does not hold to the end."""
    quiet = toy_recipe("train.tensorboard=false")
    stages = [(epoch, epoch + 1) for epoch in range(4)]
    recipe = replace(quiet, schedule=Piecewise(stages=stages, tau=0.1))
    data, run = (toy_data(48), toy_data(40)), RunFolder.create(tmp_path / "run", recipe)
    options: Any = {"run": run, "reporter": StopAt(epoch, batch), "deadline": Slow()}
    with pytest.raises(Interrupted):
        train_model(small_net(), *data, recipe, **options)
    notes = Notes()
    run, again = RunFolder.open(tmp_path / "run")
    train_model(small_net(seed=9), *data, again, run=run, reporter=notes)
    assert [row["steps"] for row in run.epochs()] == steps
    assert any("K follows the plan again" in text for text in notes.notes)


def settings(**more: Any) -> dict[str, Any]:
    ball = toy_recipe().method
    return {"method": ball, "device": "cpu", "batch_size": 16, "progress": False, **more}


def test_fit_within_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is an ordinary one, with the schedule that was given. Prices are of a slow device."""
    slow = Measured(Prices(3600.0, 900.0, 0.0), None)
    monkeypatch.setattr(within, "measure", lambda *_, **__: slow)
    schedule = Linear(k_min=1, k_max=2, tau=0.1)
    options: Any = settings(schedule=schedule, run=tmp_path / "run", within="4h")
    fitted = fit(small_net(), toy_data(), **options)
    recipe = RunFolder.open(tmp_path / "run")[1]
    assert recipe.train.within == 4 * 3600
    expected = RunFolder(tmp_path / "run").plan()
    assert (expected["within"], expected["steps"]) == (4 * 3600, [1, 2])
    assert expected["seconds"]["total"] == pytest.approx(2 * 3600 + 3 * 900, abs=60)
    assert expected["seconds"]["low"] <= expected["seconds"]["total"] <= expected["seconds"]["high"]
    assert expected["accuracy"] is None
    assert [row["steps"] for row in fitted.epochs] == [1, 2]
    assert recipe.schedule == schedule


@pytest.mark.parametrize("hours", [4, 40])
def test_what_is_passed_to_fit_within_a_time_is_not_stretched(
    hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To fewer epochs or more than the ten that fit() has by default."""
    slow = Measured(Prices(3600.0, 0.0, 0.0), None)
    monkeypatch.setattr(within, "measure", lambda *_, **__: slow)
    given = settings(
        method=NuAT(ball=toy_recipe().ball, rise=20),
        schedule=Piecewise(stages=[(0, 1), (2, 2)], tau=0.1),
        optim=SGD(lr=0.01, lr_schedule="piecewise", milestones=[20, 30], warmup=2),
    )
    fit(small_net(), toy_data(32), run=tmp_path / "run", within=f"{hours}h", **given)
    recipe = RunFolder.open(tmp_path / "run")[1]
    assert recipe.train.epochs == hours - 1
    assert (recipe.method, recipe.schedule) == (given["method"], given["schedule"])
    assert (recipe.optim.milestones, recipe.optim.warmup) == ([20, 30], 2)


def test_a_warm_up_is_checked_against_the_planned_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Measured(Prices(3600.0, 0.0, 0.0), None)
    monkeypatch.setattr(within, "measure", lambda *_, **__: slow)
    own = settings(
        method=AWP(PGD(ball=toy_recipe().ball), gamma=0.01, warmup=12),
        schedule=Constant(steps=1, step_size=0.1),
    )
    assert len(fit(small_net(), toy_data(16), within="20h", **own).epochs) == 19
    with pytest.raises(InputError, match="leaves none of the 9 epochs"):
        fit(small_net(), toy_data(16), within="10h", **own)


def test_one_slow_block_does_not_set_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, device = toy_recipe(), torch.device("cpu")
    trainer = Trainer(small_net(), training_batches(toy_data(), recipe, device), recipe, device)
    seconds = iter([1.0, 1.0, 1.0, 2.0, 9.0, 9.0, 1.1, 2.1, 0.9, 1.9])

    def timed(self: Sample, u: Control, count: int) -> float:
        self.images += count
        return next(seconds)

    monkeypatch.setattr(Sample, "epoch_seconds", timed)
    monkeypatch.setattr(Sample, "seconds", lambda *_: 0.001)
    monkeypatch.setattr(Sample, "grow", lambda *_: None)
    controls = [Control(k, 0.1) for k in (1, 2)]
    prices = measure(trainer, None, controls, 100.0).prices
    assert (prices.update + prices.step, prices.step) == pytest.approx((1.05, 1.0))
    assert prices.spread > 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"within": "5m", "epochs": 3}, "drop epochs="),
        ({"within": "soon"}, "write 30s, 5m or 1h30m"),
        ({"within": 1e-3}, "is too short: one epoch"),
    ],
)
def test_fit_refuses(arguments: dict[str, Any], text: str) -> None:
    schedule = Constant(steps=1, step_size=0.1)
    with pytest.raises(InputError, match=text):
        fit(small_net(), toy_data(), **settings(schedule=schedule), **arguments)


class Flat(torch.nn.Module):
    """A linear layer with weights of this size."""

    def __init__(self, inputs: int, outputs: int, weight: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(inputs, outputs)
        torch.nn.init.constant_(self.layer.weight, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("length", [{"within": "8s"}, {"epochs": 2}])
@pytest.mark.parametrize(
    ("model", "shift", "text"),
    [
        (Flat(36, 1), 0, "training labels range over .*; the model needs at least 2 outputs"),
        (Flat(72, 2), 0, "the model cannot take images of shape"),
        (Flat(36, 2, torch.nan), 0, "the model's logits are NaN or infinite on its first images"),
        (Flat(36, 2), 1, "the validation data have labels up to 2"),
    ],
)
def test_a_time_checks_model_and_data_as_epochs_do(
    model: Flat, shift: int, text: str, length: dict[str, Any]
) -> None:
    x, y = toy_data()
    with pytest.raises(InputError, match=text):
        fit(
            copy.deepcopy(model),
            (x, y),
            (x, y + shift),
            **settings(schedule=Linear(k_min=1, k_max=2, tau=0.1)),
            **length,
        )


def test_a_loss_that_is_not_finite_on_trial_names_the_learning_rate() -> None:
    schedule, optim = Linear(k_min=1, k_max=2, tau=0.1), SGD(lr=1e6, lr_schedule="one-cycle")
    with pytest.raises(AmataError, match=r"the loss is not finite .* \(lr [1-9]"):
        fit(small_net(), toy_data(), within="8s", **settings(schedule=schedule, optim=optim))


def test_fit_refuses_an_iterable() -> None:
    x, y = toy_data()
    with pytest.raises(InputError, match="pass single images"):
        fit(
            small_net(),
            [(x, y)],
            within="5m",
            method=toy_recipe().method,
            schedule=Constant(steps=1, step_size=0.1),
            progress=False,
        )


def test_keys_beside_the_time() -> None:
    assert read_within("5m", [("optim.lr", 1)]) == Within(300.0, keep_schedule=False)
    assert read_within("5m", [("schedule.k_max", 3)]) == Within(300.0, keep_schedule=True)
    assert read_within("5m", [("schedule.sizes", [])]) == Within(300.0, keep_schedule=False)
    assert read_within(None, [("train.epochs", 3)]) is None
    for key in ("train.epochs", "train.within"):
        with pytest.raises(InputError, match="within"):
            read_within("5m", [(key, 3)])


def test_a_plan_for_readers() -> None:
    plan = plan_within(recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.5, 2.0), 10.0, RULE)
    lines = in_lines(plan, 5.0)
    assert lines[0] == "3 epochs, K 2.11 to 2.56 (of each epoch: 2.11, 2.33, 2.56)"
    assert "in all 10.0 s (10.0 to 10.0) of 10s" in lines[1]
    assert "final evaluation comes after that: about 5 s" in lines[3]
    assert "accuracy: not known" in lines[4]
    noisy = replace(plan, prices=replace(plan.prices, spread=1.3))
    assert noisy.interval == pytest.approx((2.0, 10 + 1.3 * 8), abs=0.1), "the past is certain"
    plan = plan_within(recipes.load("cifar10-nfgsm"), Prices(1.0, 0.0, 0.0), 3.5, RULE)
    assert in_lines(plan, None)[::2][:2] == ["3 epochs, K 1", "an epoch takes 1.00 s"]
    erm = recipes.load("mnist5k-amata", ["method.name=erm"])
    assert in_lines(plan_within(erm, Prices(1.0, 0.0, 0.0), 3.5, RULE), None)[0] == "3 epochs"
    with pytest.raises(InputError, match="too short: one epoch ends after about 1s"):
        plan_within(erm, Prices(1.0, 0.0, 0.0), 0.5, RULE)


def recipe_file(path: Path) -> Path:
    recipe: Recipe = recipes.load(
        "mnist5k-amata",
        [
            *(
                "train.device=cpu",
                "data.limit=64",
                "data.batch_size=16",
                "data.valid=20",
                "train.tensorboard=false",
            ),
            *('eval.attacks=["clean"]', "eval.limit=20", "train.valid_attack=pgd-2"),
        ],
    )
    path.write_text(recipe.to_toml())
    return path


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan and train, with prices of a slow device."""
    from amata.cli import main

    def amata(*arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        assert ended.value.code == code, captured.err
        return captured.out, captured.err

    file, run = str(recipe_file(tmp_path / "mine.toml")), tmp_path / "run"
    slow = Measured(Prices(3600.0, 900.0, 0.0), None)
    monkeypatch.setattr(within, "measure", lambda *_, **__: slow)
    monkeypatch.setattr(wall, "process_age", lambda: 0.0)  # that of the tests is long
    short = ("--eps", "0.1", "--seed", "3", "--engine", "plain", "--precision", "fp32")
    record = json.loads(amata("plan", file, *short, "--within", "100h", "--json")[0])
    assert record["epochs"] == len(record["steps"]) > 4
    assert record["seconds"]["total"] < record["within"] == 360_000
    _, error = amata("train", file, "--within", "1s", "--out", str(run), code=2)
    first, last = error.splitlines()
    assert first == "note: timing some batches, to plan for 1s"
    assert "1s is too short: one epoch with K = 2 ends after about 1h" in last
    ends, enough = re.findall(r"(?:after about|give) (\w+)", last)
    assert duration(enough, "") == pytest.approx(1.1 * duration(ends, "") + 5, abs=2)
    assert not run.exists()
    _, error = amata("train", file, "--within", "4h", "--out", str(run))
    assert re.search(r"note: 2 epochs, K 2\.\d+ to 4\.\d+: the trained model is expected", error)
    assert "note: trained and saved after" in error
    recorded = RunFolder.open(run)[1]
    assert (recorded.train.epochs, recorded.train.within) == (2, 4 * 3600)
    planned = planned_controls(recorded.schedule, 2)
    assert planned is not None
    # Nothing took an hour, so the clock raised K.
    assert [row["steps"] for row in RunFolder(run).epochs()] == [planned[0].steps, 10]
    assert 4 < planned[1].steps < 6
    assert RunFolder(run).plan()["steps"] == pytest.approx([u.steps for u in planned], abs=1e-3)
    assert "drop --epochs" in amata("train", file, "--within", "9h", "--epochs", "3", code=2)[1]
    assert "pass --within" in amata("train", file, "--set", "train.within=9", code=2)[1]
    assert "drop --within" in amata("train", "--resume", str(run), "--within", "9h", code=2)[1]
