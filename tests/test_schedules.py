"""Schedules: the paper's formulas, and what every schedule promises."""

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amata.errors import InputError
from amata.schedules import (
    SCHEDULES,
    Account,
    Adaptive,
    Constant,
    Control,
    Exponential,
    Linear,
    Piecewise,
    Response,
    Schedule,
    largest_control,
    planned_controls,
)

epochs = st.integers(1, 200)
bounds = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda b: (b[0], b[0] + b[1]))
taus = st.floats(1e-3, 10)


@given(bounds, taus, epochs, st.floats(0.01, 5))
def test_annealing_rises_within_its_bounds_and_keeps_tau(
    k: tuple[int, int], tau: float, total: int, eta: float
) -> None:
    for schedule in (
        Linear(k_min=k[0], k_max=k[1], tau=tau),
        Exponential(k_min=k[0], k_max=k[1], tau=tau, eta=eta),
    ):
        controls = [schedule(t, total) for t in range(total)]
        steps = [u.steps for u in controls]
        assert steps[0] == k[0]
        assert steps == sorted(steps)
        assert steps[-1] <= k[1]
        for u in controls:
            assert u.step_size == tau / u.steps


def test_linear_is_the_papers_formula_rounded_half_up() -> None:
    anneal = Linear(k_min=2, k_max=10, tau=20 / 255)
    assert [anneal(t, 100).steps for t in (0, 6, 7, 50, 93, 94, 99)] == [2, 2, 3, 6, 9, 10, 10]
    assert [Linear(k_min=1, k_max=2, tau=1)(t, 4).steps for t in range(4)] == [1, 1, 2, 2]
    assert Linear(k_min=2, k_max=3, tau=1)(2, 4).steps == 3  # 2.5 rounds up, not to even
    assert anneal(50, 100).step_size == 20 / 255 / 6


def test_exponential_matches_the_appendix_and_ends_where_it_should() -> None:
    schedule = Exponential(k_min=2, k_max=40, tau=0.4, eta=0.5)
    for t in range(10):
        share = (1 - math.exp(-0.5 * t)) / (1 - math.exp(-0.5 * 10))
        assert schedule(t, 10).steps == math.floor(2 + 38 * share + 0.5)
    assert schedule(10, 10).steps == 40


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(steps=3, step_size=0.1),
        Linear(k_min=2, k_max=10, tau=0.1),
        Exponential(k_min=2, k_max=10, tau=0.1),
        Piecewise(stages=((0, 2), (5, 3)), tau=0.1),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
@pytest.mark.parametrize(
    ("epoch", "total", "message"),
    [
        (-1, 10, "epoch = -1 is not between 0 and epochs = 10"),
        (11, 10, "epoch = 11 is not between 0 and epochs = 10"),
        (10, 5, "epoch = 10 is not between 0 and epochs = 5"),
        (0, 0, "epochs = 0 must be a whole number of at least 1"),
        (-5, -2, "epochs = -2 must be a whole number of at least 1"),
        (0, math.nan, "epochs = nan must be a whole number"),
        (1.5, 10, "epoch = 1.5 must be a whole number"),
        (0, 10**20, "epochs = 100000000000000000000 must be at most 1,000,000,000"),
    ],
)
def test_epochs_outside_the_run_are_refused(
    schedule: Schedule, epoch: int, total: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        schedule(epoch, total)


def test_piecewise_holds_each_stage() -> None:
    schedule = Piecewise(stages=((0, 2), (3, 5)), tau=1.0)
    assert [schedule(t, 6).steps for t in range(6)] == [2, 2, 2, 5, 5, 5]
    few = Piecewise(stages=((0, 0), (1, 1), (2, 2)), tau=0.5)
    assert [few(t, 3) for t in range(3)] == [Control(0, 0.5), Control(1, 0.5), Control(2, 0.25)]
    fixed = Piecewise(stages=((0, 0), (1, 1), (2, 2)), step_size="0.5")
    assert [fixed(t, 3) for t in range(3)] == [Control(k, 0.5) for k in range(3)]


def test_a_schedule_needs_only_two_lines_in_a_foreign_loop() -> None:
    anneal = SCHEDULES["linear"](k_min=2, k_max=4, tau=1.0)
    u = anneal(0, 3)
    assert (u.steps, u.step_size) == (2, 0.5)


def test_equal_bounds_are_a_constant() -> None:
    assert (
        Linear(k_min=7, k_max=7, tau=0.7)(3, 10)
        == Constant(steps=7, step_size=0.7 / 7)(3, 10)
        == Control(7, 0.7 / 7)
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Linear(k_min=5, k_max=2, tau=1), "k_min = 5 is above k_max = 2"),
        (lambda: Linear(k_min=-1, k_max=2, tau=1), "k_min = -1 must be a whole number of at least"),
        (lambda: Linear(k_min=0, k_max=0, tau=1), "k_max = 0 must be a whole number of at least 1"),
        (lambda: Linear(k_min=1.5, k_max=2, tau=1), "k_min = 1.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: Constant(steps=-0.5, step_size=1), "steps = -0.5 must be at least 0"),
        (lambda: Constant(steps="two", step_size=1), "steps = 'two' is not a number"),
        (lambda: Constant(steps=10**10, step_size=1), "steps = 10000000000 must be at most"),
        (lambda: Piecewise(stages=((0, -1.5),), tau=1), "stages: value = -1.5 must be at least 0"),
        (lambda: Linear(k_min=1, k_max=2, tau=0), "tau = 0 must be above 0"),
        (lambda: Exponential(k_min=1, k_max=2, tau=1, eta=-1), "eta"),
        (lambda: Constant(steps=1, step_size=-0.1), "step_size"),
        (lambda: Piecewise(stages=((1, 2),), tau=1), "start at epoch 0"),
        (lambda: Piecewise(stages=((0, 2), (5, 3), (4, 3)), tau=1), "rising"),
        (lambda: Piecewise(stages=((0, 2),)), "needs tau or step_size, one of the two"),
        (lambda: Piecewise(stages=((0, 2),), tau=1, step_size=1), "one of the two"),
    ],
)
def test_bad_schedules_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]


def curve(schedule: Adaptive, gain: float, level: float = 2.0, base: float = 1.0) -> list[Response]:
    """An inner maximisation that converges: f(K) = level - gain / K, at K + base gradient
    evaluations."""
    return [Response(u, level - gain / u.steps, u.steps + base) for u in schedule.candidates()]


@given(st.floats(0.001, 5), st.floats(0.001, 1))
def test_adaptive_with_a_price_maximises_the_hamiltonian(gain: float, gamma: float) -> None:
    schedule = Adaptive(k_min=1, k_max=20, tau=0.5, gamma=gamma)
    choice = schedule.choose([curve(schedule, gain)], Account(3, 10, 0.0, 0.0))
    h = {k: -gain / k - gamma * k for k in range(1, 21)}
    best = max(h, key=h.__getitem__)
    # sqrt(b / gamma) is rounded, not the whole-numbered argmax itself
    assert abs(choice.control.steps - best) <= 1
    assert choice.control.step_size == 0.5 / choice.control.steps


@given(
    st.lists(st.floats(0, 10), min_size=3, max_size=40),
    st.floats(0.05, 0.95),
    st.sampled_from(["paper", "relative"]),
    st.sampled_from([0, 1, 2]),
)
def test_adaptive_lands_on_its_budget_whatever_the_gains(
    gains: list[float], where: float, scale: Literal["paper", "relative"], base: int
) -> None:
    probing, epochs = 0.4, len(gains)
    budget = probing + base + 1 + where * 9
    schedule = Adaptive(k_min=1, k_max=10, tau=0.5, budget=budget, scale=scale)
    spent, curves = 0.0, []
    for epoch, gain in enumerate(gains):
        spent += probing
        curves.append(curve(schedule, gain, level=gain + 1, base=base))
        spent += (
            schedule.choose(curves, Account(epoch, epochs, spent, probing)).control.steps + base
        )
    assert abs(spent - budget * epochs) <= 0.51  # half a step, in all
    assert budget * epochs < 10.3 or abs(spent / (budget * epochs) - 1) <= 0.05


@pytest.mark.parametrize("probing", [0.0, 0.5])
def test_adaptive_keeps_enough_for_the_least_of_every_later_epoch(probing: float) -> None:
    """In the third epoch the price asks for K = 7, of which 5 can be paid: the last needs K = 1."""
    schedule = Adaptive(k_min=1, k_max=10, tau=0.5, budget=3 + probing)
    curves: list[list[Response]] = []
    spent, steps = 0.0, []
    for epoch, gain in enumerate([0.0, 0.0, 100.0, 100.0]):
        curves.append(curve(schedule, gain))
        spent += probing
        steps.append(schedule.choose(curves, Account(epoch, 4, spent, probing)).control.steps)
        spent += steps[-1] + 1
    assert steps == [1, 1, 5, 1]
    assert spent == 4 * schedule.budget  # type: ignore[operator]


@pytest.mark.parametrize("probing", [0.0, 0.5])
def test_adaptive_spends_what_later_epochs_could_not(probing: float) -> None:
    """Of 40 evaluations the last three epochs can spend 11 each, so the first spends 7: K = 6."""
    schedule = Adaptive(k_min=1, k_max=10, tau=0.5, budget=10 + probing)
    curves: list[list[Response]] = []
    spent, steps = 0.0, []
    for epoch in range(4):
        curves.append(curve(schedule, gain=1.0))
        spent += probing
        steps.append(schedule.choose(curves, Account(epoch, 4, spent, probing)).control.steps)
        spent += steps[-1] + 1
    assert steps == [6, 10, 10, 10]


def test_adaptive_can_measure_gains_relative_to_the_largest_value() -> None:
    """b = 1 and the largest value is 4: K = sqrt(1 / 0.01), or sqrt(1 / 4 / 0.01)."""
    for scale, steps in (("paper", 10), ("relative", 5)):
        schedule = Adaptive(k_min=1, k_max=20, tau=0.5, gamma=0.01, scale=scale)  # type: ignore[arg-type]
        probed = curve(schedule, gain=1.0, level=4.05)
        assert schedule.choose([probed], Account(1, 10, 0.0, 0.0)).control.steps == steps


def test_adaptive_spends_where_steps_gain() -> None:
    schedule = Adaptive(k_min=1, k_max=10, tau=0.5, budget=6.0)
    curves: list[list[Response]] = []
    spent, steps = 0.0, []
    for epoch, gain in enumerate([0.1, 0.1, 0.1, 3.0, 3.0, 3.0, 0.1, 0.1]):
        curves.append(curve(schedule, gain))
        steps.append(schedule.choose(curves, Account(epoch, 8, spent, 0.0)).control.steps)
        spent += steps[-1] + 1
    assert steps[0] == 1  # nothing to compare with yet
    assert min(steps[3:5]) > max(steps[1:3])


def test_adaptive_refuses_what_it_cannot_do() -> None:
    for arguments, message in (
        ({}, "gamma or budget"),
        ({"gamma": 0.1, "budget": 3}, "gamma or budget"),
        ({"gamma": -1}, "must be above 0"),
        ({"gamma": 0.1, "k_min": 4, "k_max": 4}, "nothing to choose"),
        ({"gamma": 0.1, "probed": 1}, "at least 2"),
    ):
        with pytest.raises(InputError, match=message):
            Adaptive(tau=0.5, **arguments)
    schedule = Adaptive(tau=0.5, budget=30)
    with pytest.raises(
        InputError, match=r"cannot be met: K = 1 .. 10 costs 2.50 .. 11.50, 0.50 of it for probing"
    ):
        schedule.choose([curve(schedule, 1.0)], Account(0, 10, 0.5, 0.5))
    assert not callable(schedule), "a closed-loop schedule is no function of the epoch"
    assert planned_controls(schedule, 10) is None
    flat = [Response(u, 1.0, 2.0) for u in schedule.candidates()]
    with pytest.raises(InputError, match="costs no more for more steps"):
        schedule.choose([flat], Account(0, 10, 0.0, 0.0))


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ((-1, 0.1), "steps of the schedule = -1 must be at least 0"),
        ((math.inf, 0.1), "steps of the schedule = inf is not finite"),
        ((1.5, 0.1, -1), "tau of the schedule = -1 must be above 0"),
        ((1, 0.1, None, 0), "eps of the schedule = 0 must be above 0"),
        ((1, -0.1), "step_size of the schedule = -0.1 must be at least 0"),
        ((1, math.nan), "step_size of the schedule = nan is not finite"),
    ],
)
def test_a_users_schedule_is_checked(control: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned_controls(lambda epoch, epochs: Control(*control), 3)


@pytest.mark.parametrize(
    ("schedule", "largest"),
    [
        (Constant(steps=7, step_size=0.1), (7, 0.1)),
        (Linear(k_min=2, k_max=10, tau=0.5), (10, 0.05)),  # at t = T, after the last epoch
        (Exponential(k_min=2, k_max=10, tau=0.5), (10, 0.05)),
        (Piecewise(stages=[(0, 5), (2, 1)], tau=0.5), (5, 0.1)),
        (Piecewise(stages=[(0, 0)], tau=0.5), (0, 0.5)),
        (Piecewise(stages=[(0, 1.5), (2, 2.5)], tau=0.6), (3, 0.2)),  # of one batch
        (Constant(steps=1.5, step_size=0.1), (2, 0.1)),
        (Adaptive(k_min=2, k_max=10, tau=0.5, gamma=0.1), (10, 0.05)),
        (lambda epoch, epochs: (4 - epoch, 0.1), (4, 0.1)),
    ],
)
def test_the_largest_control_of_a_schedule(schedule: Any, largest: tuple[int, float]) -> None:
    assert largest_control(schedule, 3)[:2] == pytest.approx(largest)
