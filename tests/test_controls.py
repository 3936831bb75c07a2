"""The control of an epoch and of its batches: fractional K, from 0 on, annealed tau and radius, in
real trainings."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amata.batch import Batch
from amata.control import GradientCost, criterion
from amata.engine.ascent import ascent_step
from amata.errors import InputError, Interrupted
from amata.methods import METHODS, PGD, planned_evals
from amata.methods.contract import Memory, Net
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.schedules import (
    Constant,
    Control,
    Exponential,
    Linear,
    Piecewise,
    largest_control,
    only_k_changes,
    planned_controls,
    reaching,
)
from amata.studies.bench_case import cases, schedule_controls
from amata.studies.cost import Prices
from amata.studies.runs import row_control, run_controls
from amata.studies.space import Space
from amata.threat import L2, Linf
from amata.training.batches import training_batches
from amata.training.guard import Guard
from amata.training.trainer import Trainer
from amata.training.work import epoch_costs
from tests.conftest import images, labels, small_net
from tests.toy import StopAt, fit, toy_data, toy_recipe, without_times

FINE = ("schedule.k_min=0", "schedule.fractional=true", "train.guard=ignore")
FREE = ("method.name=free", "schedule.k_min=1", "schedule.fractional=true", "train.guard=ignore")


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 200), st.floats(0.01, 2))
def test_batches_share_a_fractional_k_evenly(top: int, bottom: int, n: int, tau: float) -> None:
    """After every batch, the steps so far are those of K, rounded; K alpha = tau in each."""
    exact, u = Fraction(top, bottom), reaching(top / bottom, tau)
    batches = [u.for_batch(i) for i in range(n)]
    taken = 0
    for i, v in enumerate(batches, 1):
        taken += v.steps
        assert taken == int(i * exact + Fraction(1, 2))
        assert v.steps in (int(exact), int(exact) + 1)
        assert v.step_size == tau / max(v.steps, 1)
    shares = u.parts()
    assert sum(share for share, _ in shares) == pytest.approx(1)
    assert sum(share * v.steps for share, v in shares) == pytest.approx(float(exact))
    assert set(batches) <= {v for _, v in shares}


@pytest.mark.parametrize("steps", [1.4, 7 * 0.2, 0.1 + 1.3, 1.4 + 1e-12, 1.4 - 1e-12])
def test_rounding_errors_of_k_change_no_batch(steps: float) -> None:
    u = Control(steps, 0.1)
    assert [u.for_batch(i).steps for i in range(10)] == [1, 2, 1, 2, 1, 1, 2, 1, 2, 1]
    assert {u.for_batch(i).step_size for i in range(10)} == {0.1}, "without tau"
    assert [(share, v.steps) for share, v in u.parts()] == [(0.6, 1), (0.4, 2)]


def test_a_whole_k_is_the_same_in_every_batch() -> None:
    u = reaching(2.0, 0.5)
    assert u == Control(2, 0.25)
    assert isinstance(u.steps, int)
    assert u.for_batch(7) is u
    assert reaching(0, 0.5) == Control(0, 0.5), "a step of K = 0, if a method takes one after all"


def test_a_control_shows_what_it_has() -> None:
    """A search names its trials by this text, so that of a plain control may not change."""
    assert repr(reaching(2, 0.5)) == "Control(steps=2, step_size=0.25)"
    assert repr(reaching(0.5, 0.5, 0.25)) == "Control(steps=0.5, step_size=0.5, tau=0.5, eps=0.25)"


@given(st.floats(0, 6), st.floats(0.01, 2), st.floats(0.01, 2), st.floats(0.1, 1))
def test_no_step_is_longer_than_the_limit(k: float, tau: float, most: float, factor: float) -> None:
    """Of any batch, in a smaller ball, and with the steps that the guard adds."""
    u = reaching(k, tau, step_size_max=most)
    for v in [*(u.for_batch(i) for i in range(5)), *(part for _, part in u.parts())]:
        assert v.step_size == min(tau / max(v.steps, 1), most)
    small = u.scaled(factor)
    assert small.for_batch(0).step_size == pytest.approx(factor * u.for_batch(0).step_size)
    more = u.with_more(2)
    assert more.step_size == min(tau / max(more.steps, 1), most)


def test_the_limit_stays_where_another_k_is_chosen() -> None:
    """By amata bench, search and msa, which start from the control with the most steps."""
    trial = pytest.importorskip("optuna").trial
    fine = toy_recipe("schedule.k_min=1", "schedule.tau=0.2", "schedule.step_size_max=0.125")
    stages = Piecewise(stages=[(0, 1), (2, 1.8)], tau=0.4, step_size_max=0.25)
    assert largest_control(stages, 4).with_steps(1) == reaching(1, 0.4, step_size_max=0.25)
    (case,) = cases(replace(fine, schedule=stages), [], [1, 2])
    assert [u.step_size for u in case.controls] == [0.25, 0.2]
    prices = Prices(fine, None)  # type: ignore[arg-type]  # PGD's are counted without data
    space = Space(fine, prices, 4.0, 3, ("linear",))
    params = space.recipe_params()
    assert params is not None
    assert space.suggest(trial.FixedTrial(params))["step_size_max"] == 0.125


def test_the_limit_of_a_schedule_of_ones_own() -> None:
    def own(epoch: int, epochs: int) -> Control[float]:
        return Control(1.5, 0.4, tau=0.4, step_size_max=0.25)

    (u,) = planned_controls(own, 1) or []
    assert u.step_size == 0.25
    assert [v.step_size for _, v in u.parts()] == [0.25, 0.2]
    with pytest.raises(InputError, match="return tau too"):
        planned_controls(lambda epoch, epochs: Control(1, 0.4, step_size_max=0.25), 1)


def test_a_limited_schedule() -> None:
    linear = Linear(k_min=0, k_max=3, tau=0.6, step_size_max=0.4, eps_start=0.5, eps_until=0.5)
    assert [linear(t, 6).steps for t in range(6)] == [0, 1, 1, 2, 2, 3]
    assert [linear(t, 6).step_size for t in range(6)] == pytest.approx(
        [0.4 / 2, 0.4 * 2 / 3, 0.4 * 5 / 6, 0.3, 0.3, 0.2]
    )
    with pytest.raises(InputError, match="step_size_max limits tau / K"):
        Piecewise(stages=[(0, 1)], step_size=0.1, step_size_max=0.1)


def test_a_limited_schedule_trains_and_resumes_with_its_steps(tmp_path: Path) -> None:
    """Also where K changes during the run, which must not lengthen the steps."""
    sets = ("schedule.k_min=1", "schedule.tau=0.4", "schedule.step_size_max=0.25")
    recipe = toy_recipe(*sets, "train.guard=ignore", "train.tensorboard=false")
    rows = fit(small_net(), toy_data(), None, recipe, run=tmp_path / "whole").epochs
    assert [r["steps"] for r in rows] == [1, 2, 2, 3]
    assert [r["step_size"] for r in rows] == [0.25, 0.2, 0.2, 0.4 / 3]
    assert row_control(rows[0]).with_more(1).step_size == 0.2
    trainer = _trainer(recipe)
    trainer.state.steps = [1.5] * recipe.train.epochs
    assert [v.step_size for _, v in trainer.scheduled().parts()] == [0.25, 0.2]
    with pytest.raises(Interrupted):
        fit(small_net(), toy_data(), None, recipe, run=tmp_path / "cut", reporter=StopAt(0, 2))
    again = fit(small_net(), toy_data(), None, recipe, run=RunFolder.open(tmp_path / "cut")[0])
    assert [*map(without_times, again.epochs)] == [*map(without_times, rows)]


def test_a_search_starts_from_a_plain_schedule_only() -> None:
    def space(*more: str) -> Space:
        recipe = toy_recipe("schedule.k_min=1", *more)
        prices = Prices(recipe, None)  # type: ignore[arg-type]  # PGD's are counted without data
        return Space(recipe, prices, 4.0, 3, ("linear",))

    assert space().recipe_params() is not None
    assert space("schedule.k_min=0").recipe_params() is None
    # What trials do not have is refused, and what they can have is kept.
    for more in ("schedule.tau_end=1", "schedule.eps_start=0.5", "schedule.sizes=[[0.5, 3]]"):
        with pytest.raises(InputError, match=rf"drop {more.partition('=')[0]}, which its trials"):
            space(more)
    fine = space("schedule.fractional=true", "schedule.step_size_max=0.03")
    assert fine.recipe_params() is not None
    table = fine.suggest(
        optuna.trial.FixedTrial({"shape": "linear", "k_min": 1, "rise": 1, "tau": 2.0})
    )
    assert (table["fractional"], table["step_size_max"]) == (True, 0.03)
    stages = {"shape": "piecewise", "k_min": 1, "rise": 1, "tau": 2.0, "switch": 0.5}
    whole = replace(fine, shapes=("piecewise",)).suggest(optuna.trial.FixedTrial(stages))
    assert "fractional" not in whole, "its stages are whole numbers"


def test_schedules_in_fractions() -> None:
    linear = Linear(k_min=0, k_max=2, tau=0.6, fractional=True)
    assert [linear(t, 8).steps for t in range(8)] == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]
    assert linear(6, 8) == Control(1.5, 0.6 / 1.5, 0.6)
    piecewise = Piecewise(stages=[(0, 0.5), (1, 2)], step_size=0.1)
    assert [piecewise(t, 2) for t in range(2)] == [Control(0.5, 0.1), Control(2, 0.1)]
    assert Constant(steps="7/5", step_size=0.1)(0, 1) == Control(1.4, 0.1)
    pairs: Any = lambda epoch, epochs: (epoch / 2, 0.1)  # noqa: E731
    own = planned_controls(pairs, 3)
    assert own == [Control(0, 0.1), Control(0.5, 0.1), Control(1, 0.1)]


@pytest.mark.parametrize(
    ("schedule", "alone"),
    [
        (Linear(k_min=0, k_max=3, tau=0.1, fractional=True), True),
        (Constant(steps=1.5, step_size=0.1), True),
        (Piecewise(stages=[(0, 0), (1, 2.5)], tau=0.1), True),
        (Piecewise(stages=[(0, 1), (1, 2)], step_size=0.1), False),
        (Linear(k_min=0, k_max=3, tau=0.1, step_size_max=0.06), True),
        (Linear(k_min=1, k_max=3, tau=0.1, tau_end=0.2), False),
        (Linear(k_min=1, k_max=3, tau=0.1, eps_start=0.5), False),
        (Linear(k_min=1, k_max=3, tau=0.1, sizes=[(0.5, 3)]), False),
    ],
    ids=str,
)
def test_a_plan_in_which_k_alone_changes(schedule: Any, alone: bool) -> None:
    assert only_k_changes(planned_controls(schedule, 4) or []) is alone


@dataclass(frozen=True, kw_only=True)
class Watched(PGD):
    """PGD that keeps the controls of its batches."""

    seen: ClassVar[list[Control]] = []

    def step(self, net: Any, batch: Any, u: Control, rng: Any, memory: Any) -> None:
        self.seen.append(u)
        super().step(net, batch, u, rng, memory)


def test_every_batch_of_a_training_reaches_tau() -> None:
    recipe = toy_recipe(*FINE)
    watched = Watched(ball=recipe.ball)
    watched.seen.clear()
    fitted = fit(small_net(), toy_data(128), None, replace(recipe, method=watched))
    assert [row["steps"] for row in fitted.epochs] == [0, 0.75, 1.5, 2.25]
    assert [row.get("tau") for row in fitted.epochs] == [None, 0.1, 0.1, 0.1]
    assert [u.steps for u in watched.seen[8:16]] == [1, 1, 0, 1, 1, 1, 0, 1]
    for u in watched.seen:
        assert isinstance(u.steps, int)
        assert u.step_size == 0.1 / max(u.steps, 1)


@pytest.mark.parametrize(
    ("k", "batches", "steps"), [(1.5, 1, [2, 1, 2, 1]), (1.25, 3, [1, 2, 1, 1] * 3)]
)
def test_epochs_of_few_batches_share_a_fractional_k(
    k: float, batches: int, steps: list[int]
) -> None:
    recipe = toy_recipe("train.guard=ignore")
    watched = Watched(ball=recipe.ball)
    watched.seen.clear()
    fine = replace(recipe, method=watched, schedule=Constant(steps=k, step_size=0.1))
    fitted = fit(small_net(), toy_data(16 * batches), None, fine)
    assert [u.steps for u in watched.seen] == steps
    assert fitted.grad_evals == 16 * 4 * batches * (k + 1), "as planned"


@pytest.mark.parametrize(
    "of",
    [
        FINE,
        FREE,
        (*FINE, "method.name=fast"),
        (*FINE, "method.name=fast", "method.weak=skip"),
        (*FINE, "method.name=trades"),
        (*FINE, "train.accumulate=2", "method.clean_term=true"),
        Constant(steps=1.5, step_size=0.1),
        Piecewise(stages=[(0, 0.5), (2, 2)], tau=0.1),
    ],
    ids=str,
)
def test_a_training_spends_what_was_counted(of: Any) -> None:
    recipe = toy_recipe(*of) if isinstance(of, tuple) else replace(toy_recipe(), schedule=of)
    fitted = fit(small_net(), toy_data(128), None, recipe)  # 8 batches: K times 8 is whole
    plan = planned_controls(recipe.schedule, 4) or []
    costs = epoch_costs(recipe, plan)
    assert costs == [planned_evals(recipe.method, u).evals for u in plan]
    assert fitted.grad_evals == 128 * sum(costs)
    spent = [0, *(row["grad_evals"] for row in fitted.epochs)]
    assert [b - a for a, b in pairwise(spent)] == [128 * c for c in costs]


@pytest.mark.parametrize("options", [FINE, FREE], ids=["pgd", "free"])
def test_a_run_resumed_within_a_fractional_epoch_ends_with_the_same_bytes(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    recipe = toy_recipe(*options, "train.tensorboard=false", "optim.ema=0.9")
    data = toy_data(112), toy_data(40)
    fit(small_net(), *data, recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(small_net(), *data, recipe, run=tmp_path / "cut", reporter=StopAt(2, 3))
    run, again = RunFolder.open(tmp_path / "cut")
    fit(small_net(seed=9), *data, again, run=run)
    last = [(tmp_path / kind / "last.safetensors").read_bytes() for kind in ("cut", "whole")]
    assert last[0] == last[1]
    plan = planned_controls(recipe.schedule, 4) or []
    assert list(run_controls(run).values()) == plan, "read back from the rows"


@pytest.mark.parametrize(
    ("options", "schedule", "message"),
    [
        (
            ("method.name=free",),
            Linear(k_min=0, k_max=2, tau=0.1, fractional=True),
            r"with 0 steps, as in epoch 1, free does not update the weights; raise K",
        ),
        (
            ("method.name=yopo", "model.first_layer='0'"),
            Constant(steps=0.4, step_size=0.1),
            r"with 0 steps, as in some batches of epoch 1, where K = 0.4, yopo does not update",
        ),
    ],
)
def test_a_k_that_a_method_cannot_use_is_refused(
    options: tuple[str, ...], schedule: Any, message: str
) -> None:
    recipe = replace(toy_recipe(*options), schedule=schedule)
    with pytest.raises(InputError, match=message):
        fit(small_net(), toy_data(), None, recipe)


@pytest.mark.parametrize(
    ("sets", "watches"),
    [
        ((), True),
        (("schedule.eps_start=0.8",), False),
        (("schedule.eps_start=0.8", "method.reach=1.25"), True),  # from 1 eps on
        (("schedule.eps_start=1.25",), True),
    ],
)
def test_the_guard_watches_long_steps_where_training_reaches_eps(
    sets: tuple[str, ...], watches: bool
) -> None:
    trainer = _trainer(toy_recipe("schedule.k_min=2", *sets))
    guard = Guard(trainer, lambda _: 0.0, trainer.batches)
    assert guard._watches(200) is watches
    assert not guard._watches(3), "too few images tell nothing"


@pytest.mark.parametrize(("steps", "armed"), [(0, 0), (0.5, 1), (1, 1), (1.9, 1), (2, 0), (2.5, 0)])
def test_the_guard_watches_where_some_batches_take_a_single_step(steps: float, armed: bool) -> None:
    trainer = _trainer(replace(toy_recipe(), schedule=Constant(steps=steps, step_size=0.1)))
    assert Guard(trainer, lambda _: 0.0, trainer.batches).armed == armed


def test_the_guards_steps_keep_the_reach() -> None:
    trainer = _trainer(toy_recipe(*FINE))
    trainer.state.epoch, trainer.state.extra_steps = 2, 1
    assert trainer.control() == pytest.approx(Control(2.5, 0.04, 0.1))
    assert trainer.control().for_batch(0) == Control(3, 0.1 / 3)
    trainer.state.epoch = 0
    assert trainer.control() == Control(1, 0.1)


def _trainer(recipe: Recipe) -> Trainer:
    device = torch.device("cpu")
    batches = training_batches(toy_data(), recipe, device)
    return Trainer(small_net(), batches, recipe, device)


def test_the_criterion_of_a_fractional_k_is_the_mean_over_its_batches() -> None:
    ball = Linf(0.1)
    found = [
        criterion(
            small_net(),
            [Batch(images(8, i), labels(8, seed=i), torch.arange(8), 8) for i in range(2)],
            u,
            method=PGD(ball=ball),
            ball=ball,
            cost=GradientCost(0.01),
            alphas=1,
        )
        for u in (Control(1, 0.2), Control(2, 0.1), reaching(1.25, 0.2))
    ]
    few, many, mixed = (c.tried[0] for c in found)
    assert mixed.price == 2.25
    assert mixed.gains == pytest.approx(
        [0.75 * a + 0.25 * b for a, b in zip(few.gains, many.gains, strict=True)]
    )
    assert found[2].fosc == pytest.approx(0.75 * found[0].fosc + 0.25 * found[1].fosc)


def test_a_benchmark_times_the_whole_numbers_of_steps() -> None:
    recipe = toy_recipe(*FINE)
    assert {u.steps for u in schedule_controls(recipe)} == {0, 1, 2, 3}


# --- tau and the radius
# ------------------------------------------------------------------------------------------


def test_tau_and_the_radius_anneal() -> None:
    schedule = Linear(k_min=1, k_max=3, tau=0.1, tau_end=0.2, eps_start=0.25, eps_until=0.5)
    taus, shares = [0.1, 0.125, 0.15, 0.175], [0.25, 0.625, 1, 1]
    for t, (tau, share) in enumerate(zip(taus, shares, strict=True)):
        u = schedule(t, 4)
        assert u.eps == pytest.approx(share)
        assert u.steps * u.step_size == pytest.approx(share * tau)
    assert schedule(2, 4).eps == schedule(3, 4).eps == 1, "exactly"
    assert schedule(4, 4)[:2] == schedule.largest()[:2] == (3, 0.2 / 3)
    assert Exponential(k_min=0, k_max=2, tau=1, eps_start=0.5)(1, 4).eps == 0.625
    fine = Linear(k_min=0, k_max=2, tau=0.2, fractional=True, eps_start="1/2")(1, 4)
    assert fine.eps == 0.625
    assert {v.eps for _, v in fine.parts()} == {0.625}
    assert all(v.step_size == fine.tau for _, v in fine.parts()), "K is 0 or 1 in every batch"
    assert fine.tau == 0.125


def test_a_radius_that_rises_as_in_a_warm_up_trains_the_same_bytes() -> None:
    """eps_warmup = 1 is a start at one half that lasts an epoch of four."""
    data, found = toy_data(), []
    for more in (("train.eps_warmup=1",), ("schedule.eps_start=1/2", "schedule.eps_until=1/4")):
        model = small_net()
        fitted = fit(model, data, None, toy_recipe("train.guard=ignore", *more))
        found.append(([row["loss"] for row in fitted.epochs], model.state_dict()))
        assert [row["eps"] for row in fitted.epochs] == [0.025, 0.05, 0.05, 0.05]
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][k], found[1][1][k]) for k in found[0][1])


@pytest.mark.parametrize(
    ("start", "radii"), [(0.8, (0.05, 0.05625)), (1.25, (0.078125, 0.0703125))]
)
def test_the_reach_of_training_attacks_is_annealed(start: float, radii: tuple[float, ...]) -> None:
    """Up to reach eps, or down to it: the images that training sees go as far as that and no
    further."""
    seen: list[float] = []

    class Watched(PGD):
        def step(self, net: Net, batch: Batch, u: Control, rng: Any, memory: Memory) -> None:
            super().step(Spy(net, batch.x), batch, u, rng, memory)

    class Spy:
        def __init__(self, net: Net, x: torch.Tensor) -> None:
            self.net, self.x = net, x

        def __getattr__(self, name: str) -> Any:
            return getattr(self.net, name)

        def backward(self, x: Any, y: Any, **given: Any) -> Any:
            seen.append(float((x - self.x).abs().max()))
            return self.net.backward(x, y, **given)

    recipe = toy_recipe("train.epochs=2", f"schedule.eps_start={start}", "schedule.tau=0.2")
    method = Watched(ball=recipe.ball, reach=1.25)
    fitted = fit(small_net(), toy_data(64), None, replace(recipe, method=method))
    assert [row["eps"] for row in fitted.epochs] == pytest.approx(radii)
    half = len(seen) // 2
    assert [max(seen[:half]), max(seen[half:])] == pytest.approx(radii, abs=1e-6)


def test_a_method_of_ones_own_that_refuses_a_field_is_named_by_its_class() -> None:
    class Fixed(PGD):
        refuses = ("eps",)

    recipe = toy_recipe("schedule.eps_start=0.5", "schedule.tau=0.2")
    with pytest.raises(InputError, match=r"^Fixed cannot use the eps that"):
        fit(small_net(), toy_data(), None, replace(recipe, method=Fixed(ball=recipe.ball)))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_in_a_radius_that_rises(name: str) -> None:
    """And in fractions where it can: what it gets is whole, and inside the ball of its epoch."""
    least = METHODS[name].min_steps
    more = ("model.first_layer='0'", f"method.name={name}", f"schedule.k_min={least}")
    recipe = toy_recipe(*more, "schedule.eps_start=0.5", *FINE[1:], "train.epochs=2")
    if name == "erm":
        with pytest.raises(InputError, match=r"erm cannot use the eps .*; drop schedule.eps_start"):
            fit(small_net(), toy_data(64), None, recipe)
        return
    fitted = fit(small_net(), toy_data(64), None, recipe)
    assert [row["eps"] for row in fitted.epochs] == pytest.approx([0.025, 0.0375])
    plan = planned_controls(recipe.schedule, 2) or []
    exact = [planned_evals(recipe.method, u) for u in plan]
    assert fitted.grad_evals == 64 * sum(p.evals for p in exact) or not exact[-1].exact


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("schedule.eps_start=0",), "eps_start = 0.0 must be above 0"),
        (
            ("threat.eps=0.8", "schedule.tau=0.8", "schedule.eps_start=1.5"),
            r"the radius of epoch 1, 1.5 times the usual: .* lower schedule.eps_start",
        ),
        (("schedule.eps_until=0.5",), "eps_until = 0.5 has no effect without eps_start"),
        (("schedule.tau_end=-1",), "tau_end = -1.0 must be above 0"),
        (
            ("schedule.eps_start=0.5", "train.eps_warmup=1"),
            "train.eps_warmup and the schedule both change the training radius",
        ),
    ],
)
def test_bad_radii_are_refused(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(small_net(), toy_data(), None, toy_recipe(*options))


@pytest.mark.parametrize("kind", [Linf, L2])
def test_a_recorded_step_serves_every_radius(kind: Any) -> None:
    """What a graph copies in decides the projection: with the tensors of another ball's region, a
    region projects as that one does. So the fast engine records one graph for all radii."""
    x = torch.rand(4, 3, 5, 5)
    x_adv, g = x + torch.randn_like(x), torch.randn_like(x)
    recorded, now = kind(0.5).around(x), kind(0.1).around(x)
    copied = {
        f.name: getattr(now, f.name)
        for f in fields(now)
        if isinstance(getattr(now, f.name), torch.Tensor)
    }
    assert torch.equal(
        ascent_step(replace(recorded, **copied), x_adv, g, 0.1), ascent_step(now, x_adv, g, 0.1)
    )
