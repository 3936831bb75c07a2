"""Runs within a given time: the plan as a function of prices, the measurement, and the clock."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from amata import recipes
from amata.errors import InputError, Interrupted
from amata.methods import AWP, PGD
from amata.quantity import duration, in_time
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.schedules import Constant, Linear, Piecewise
from amata.training import Fitted, fit, train_model, within
from amata.training.batches import training_batches
from amata.training.deadline import Deadline
from amata.training.prices import Measured, measure
from amata.training.state import TrainState
from amata.training.time_plan import Prices, TimePlan, plan_within, stretched
from amata.training.time_rule import read_rule, time_rule
from amata.training.trainer import Trainer
from amata.training.wall import WallClock
from amata.training.within import Within, read_within, timed_controls
from tests.conftest import small_net
from tests.toy import StopAt, toy_data, toy_recipe
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
    ],
)
def test_times_are_read_and_written(text: Any, seconds: float) -> None:
    assert duration(text, "within") == seconds
    assert duration(in_time(seconds), "within") == seconds


@pytest.mark.parametrize("text", ["", "5 minutes", "m", "-3", "0", "1m1h", "1e400", None, True])
def test_other_texts_are_no_time(text: Any) -> None:
    with pytest.raises(InputError, match="within"):
        duration(text, "within")


# Recipe, prices of an update, a step and an epoch's rest, time -> K of every epoch.
DIGITS = ("mnist5k-amata", 1.0, 0.5, 0.5)
PLANS = [
    (DIGITS, 2.5, [2]),
    (DIGITS, 6.0, [9]),
    (DIGITS, 8.0, [2, 8]),
    (DIGITS, 20.0, [2, 6, 10, 10]),
    (("cifar10-amata-quick", 1.0, 0.4, 0.0), 20.01, [1] * 4 + [2] * 8),
    (("cifar10-amata-quick", 1.0, 0.4, 0.0), 40.01, [1] * 6 + [2] * 9 + [3] * 7),
    (("cifar10-nfgsm", 1.0, 0.0, 0.5), 20.0, [1] * 13),
    (("cifar10-erm", 1.0, 0.0, 0.0), 7.9, [0] * 7),
    (("mnist5k-pgd", 0.5, 0.05, 0.0), 5.01, [10] * 5),
]


@pytest.mark.parametrize(("case", "within", "steps"), PLANS)
def test_the_plan_of_given_prices(
    case: tuple[str, float, float, float], within: float, steps: list[int]
) -> None:
    name, update, step, epoch = case
    plan = plan_within(recipes.load(name), Prices(update, step, epoch), within, RULE)
    assert list(plan.steps) == steps
    train, planned = plan.recipe.train, plan.recipe.schedule
    assert (train.epochs, train.within) == (len(steps), within)
    assert [planned(t, train.epochs).steps for t in range(train.epochs)] == steps  # type: ignore[operator]


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
        assert plan.seconds <= within + 1e-6
        full = plan.range is None or set(plan.steps) == {plan.range[1]}
        rest = prices.training(max(plan.steps)) + prices.epoch if full else 0.0
        if len(plan.steps) < RULE.most_epochs:
            assert plan.seconds > within - rest - prices.step - 1e-6
        assert list(plan.steps) == sorted(plan.steps)
        longer = plan_within(recipe, prices, 2 * within, RULE)
        assert longer.seconds >= plan.seconds
        same = plan.range == longer.range
        assert not same or len(longer.steps) >= len(plan.steps)


def test_a_schedule_that_is_given_stays() -> None:
    recipe, prices = recipes.load("mnist5k-amata"), Prices(1.0, 0.5, 0.5)
    plan = plan_within(recipe, prices, 20.0, RULE, keep_schedule=True)
    assert plan.recipe.schedule == recipe.schedule
    assert plan.steps == (2, 4, 6, 8)
    with pytest.raises(InputError, match="schedule chooses it during training"):
        plan_within(recipes.load("mnist5k-adaptive"), prices, 20.0, RULE)


def test_what_is_counted_in_epochs_keeps_its_share() -> None:
    def milestones(name: str, epochs: int) -> Any:
        return stretched(recipes.load(name), epochs)

    assert milestones("cifar10-amata-quick", 38).optim.milestones == [34]
    assert milestones("cifar10-amata-quick", 38).optim.warmup == 3
    assert milestones("cifar10-amata", 10).optim.milestones == [8, 9]
    assert milestones("cifar10-dat", 10).method.dynamic_epochs == 8
    assert milestones("cifar10-nuat", 10).method.rise == 9
    awp = milestones("cifar10-awp", 10)
    assert time_rule().band(awp, 10.0) is None, "fitted on PGD without AWP"
    short = milestones("cifar10-fat", 4).method
    assert short.tau[0][0] == 0
    warm = recipes.load("mnist5k-amata", ["train.eps_warmup=5"])
    assert stretched(warm, 2).train.eps_warmup == 1
    staged = replace(warm, schedule=Piecewise(stages=[(0, 1), (4, 2), (5, 3)], tau=0.5))
    assert stretched(staged, 20).schedule.stages == ((0, 1), (8, 2), (10, 3))  # type: ignore[union-attr]
    assert stretched(staged, 1).schedule.stages[0][0] == 0  # type: ignore[union-attr]


def test_too_little_time_names_the_least() -> None:
    recipe = recipes.load("mnist5k-amata")
    with pytest.raises(InputError, match=r"one epoch with K = 2 ends after about 13s"):
        plan_within(recipe, Prices(1.0, 0.5, 0.5, spent=10.0), 12.0, RULE)


def test_accuracy_is_expected_only_where_runs_are_stored() -> None:
    text = (
        "aim = 1.0\ntolerance = 0.02\nmost_epochs = 300\n"
        '[fitted]\ndata = "cifar10"\nnorm = "linf"\nmethod = "pgd"\n'
        "[[band]]\nupdates = 0\nk_min = 1\nk_max = 3\ntau = 1.5\n"
        '[expected]\nrecipe = "cifar10-amata-quick"\nattack = "pgd-20"\na = 0.5\nb = 1.0\n'
        "half_width = 0.01\nfewest = 20.0\nmost = 50.0\n"
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
    assert plan_within(recipes.load("mnist5k-amata"), prices, 40.0, rule).accuracy is None


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
    prices = measured.prices
    assert min(prices.update, prices.epoch) > 0
    assert measured.evaluation(recipe, 100) is not None
    fitted = train_model(net, toy_data(), toy_data(40), recipe, trainer=trainer)
    for key, value in plain.model.state_dict().items():
        assert torch.equal(value, fitted.model.state_dict()[key]), key
    timed = ("train_seconds", "data_seconds", "unix_seconds", "compile_seconds")
    for a, b in zip(plain.epochs, fitted.epochs, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {
            k: v for k, v in b.items() if k not in timed
        }


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


def follow(plan: TimePlan, speeds: list[float]) -> tuple[list[int], float, list[str]]:
    """K of every epoch, the end, and the notes, if epochs take `speeds` times as long as priced."""
    clock, state, notes = FakeClock(), TrainState(), list[str]()
    clock.now = plan.prices.spent
    deadline, steps = Deadline(plan, RULE, clock), list[int]()
    for epoch in range(len(plan.steps)):
        state.epoch = epoch
        deadline.begin_epoch(state, notes.append)
        k = (state.steps or plan.steps)[epoch]
        steps.append(k)
        clock.now += speeds[epoch % len(speeds)] * plan.prices.total([k])
    return steps, clock.now, notes


@pytest.mark.parametrize(
    ("speeds", "told"),
    [([1.0], 0), ([1.1], 0), ([0.9], 0), ([1, 1, 1.3], 0), ([3.0], 1), ([0.2], 1)],
)
def test_k_follows_the_clock(speeds: list[float], told: int) -> None:
    prices = Prices(1.0, 0.5, 0.2, spent=5.0)
    plan = plan_within(recipes.load("mnist5k-amata"), prices, 100.0, RULE)
    steps, end, notes = follow(plan, speeds)
    if speeds == [1.0]:
        assert tuple(steps) == plan.steps
    assert len(notes) == told
    if not told:
        assert end == pytest.approx(100, abs=5)
    assert steps == sorted(steps)
    assert 2 <= min(steps) <= max(steps) <= 10


def test_a_run_whose_k_cannot_change_is_only_told() -> None:
    plan = plan_within(recipes.load("cifar10-nfgsm"), Prices(1.0, 0.0, 0.0), 20.0, RULE)
    steps, _, notes = follow(plan, [1.5])
    assert tuple(steps) == plan.steps
    assert len(notes) == 1


class Rising(Deadline):
    """A clock that lets K rise by one in the second epoch, whatever the time."""

    def __init__(self) -> None:
        pass

    def begin_epoch(self, state: TrainState, note: Any) -> None:
        if state.epoch == 1:
            state.steps = [1, 2, 3, 3]


def test_changed_steps_are_recorded_and_resumed(tmp_path: Path) -> None:
    quiet = toy_recipe("train.tensorboard=false")
    recipe = replace(quiet, schedule=Piecewise(stages=[(0, 1)], tau=0.1))
    data = toy_data(48), toy_data(40)

    def timed(name: str, reporter: Reporter | None = None) -> Fitted:
        run = RunFolder.create(tmp_path / name, recipe)
        options: Any = {"run": run, "reporter": reporter, "deadline": Rising()}
        return train_model(small_net(), *data, recipe, **options)

    whole = timed("whole")
    assert [row["steps"] for row in whole.epochs] == [1, 2, 3, 3]
    assert [row["step_size"] * row["steps"] for row in whole.epochs] == pytest.approx([0.1] * 4)
    with pytest.raises(Interrupted):
        timed("cut", StopAt(2, 2))
    run, again = RunFolder.open(tmp_path / "cut")
    train(small_net(seed=9), *data, again, run=run)  # without a clock
    last = [(tmp_path / kind / "last.safetensors").read_bytes() for kind in ("cut", "whole")]
    assert last[0] == last[1]


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
    assert [row["steps"] for row in fitted.epochs] == [1, 2]
    assert recipe.schedule == schedule


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
    assert read_within(None, [("train.epochs", 3)]) is None
    for key in ("train.epochs", "train.within"):
        with pytest.raises(InputError, match="within"):
            read_within("5m", [(key, 3)])


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
    """Plan, train, and repeat the recorded recipe, with prices of a slow device."""
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
    lines, _ = amata("plan", file, "--within", "9h35m")
    assert "4 epochs, K 2 to 9 (K 2 from epoch 1, 4 from epoch 2, " in lines
    assert "accuracy: not known" in lines
    record = json.loads(amata("plan", file, "--within", "100h", "--json")[0])
    assert record["epochs"] == len(record["steps"]) > 4
    assert record["seconds"]["total"] < record["within"] == 360_000
    _, error = amata("train", file, "--within", "1s", "--out", str(run), code=2)
    assert error.count("\n") == 1
    assert "--within 1s is too short: one epoch with K = 2 ends after about 1h" in error
    assert not run.exists()
    _, error = amata("train", file, "--within", "9h35m", "--out", str(run))
    assert "note: 4 epochs, K 2 to 9: the trained model is expected after" in error
    assert "note: trained and saved after" in error
    recorded = RunFolder.open(run)[1]
    assert (recorded.train.epochs, recorded.train.within) == (4, 34500)
    again = tmp_path / "again"
    amata("train", str(run / "recipe.toml"), "--out", str(again))
    assert [row["steps"] for row in RunFolder(again).epochs()] == [2, 4, 6, 9]
    # Nothing took an hour, so the clock raised K.
    assert [row["steps"] for row in RunFolder(run).epochs()] == [2, 10, 10, 10]
    assert "drop --epochs" in amata("train", file, "--within", "9h", "--epochs", "3", code=2)[1]
    assert "pass --within" in amata("train", file, "--set", "train.within=9", code=2)[1]
    assert "drop --within" in amata("train", "--resume", str(run), "--within", "9h", code=2)[1]
