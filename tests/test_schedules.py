"""Schedules: the paper's formulas, and what every schedule promises."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amata.errors import InputError
from amata.schedules import SCHEDULES, Constant, Control, Exponential, Linear, Piecewise

epochs = st.integers(1, 200)
bounds = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda b: (b[0], b[0] + b[1]))
taus = st.floats(1e-3, 10)


@given(bounds, taus, epochs, st.floats(0.01, 5))
def test_annealing_rises_within_its_bounds_and_keeps_tau(k: tuple[int, int], tau: float, total: int, eta: float) -> None:
    for schedule in (Linear(k_min=k[0], k_max=k[1], tau=tau), Exponential(k_min=k[0], k_max=k[1], tau=tau, eta=eta)):
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


def test_piecewise_holds_each_stage() -> None:
    schedule = Piecewise(stages=((0, 2), (3, 5)), tau=1.0)
    assert [schedule(t, 6).steps for t in range(6)] == [2, 2, 2, 5, 5, 5]


def test_a_schedule_needs_only_two_lines_in_a_foreign_loop() -> None:
    anneal = SCHEDULES["linear"](k_min=2, k_max=4, tau=1.0)
    steps, step_size = anneal(0, 3)
    assert (steps, step_size) == (2, 0.5)


def test_equal_bounds_are_a_constant() -> None:
    assert Linear(k_min=7, k_max=7, tau=0.7)(3, 10) == Constant(steps=7, step_size=0.7 / 7)(3, 10) == Control(7, 0.7 / 7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Linear(k_min=5, k_max=2, tau=1), "k_min = 5 is above k_max = 2"),
        (lambda: Linear(k_min=0, k_max=2, tau=1), "k_min = 0 must be a whole number of at least 1"),
        (lambda: Linear(k_min=1, k_max=2, tau=0), "tau = 0 must be above 0"),
        (lambda: Exponential(k_min=1, k_max=2, tau=1, eta=-1), "eta"),
        (lambda: Constant(steps=1, step_size=-0.1), "step_size"),
        (lambda: Piecewise(stages=((1, 2),), tau=1), "begin at epoch 0"),
        (lambda: Piecewise(stages=((0, 2), (5, 3), (4, 3)), tau=1), "rising"),
    ],
)
def test_bad_schedules_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]
