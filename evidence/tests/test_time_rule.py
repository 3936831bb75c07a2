"""The fit behind `amata plan`: known numbers are found again, and held-out budgets are held out."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

import time_rule
from time_rule import Run, fitted, prices, rising, updates_of


def made(steps: Sequence[float], seed: int, power: float = 1.0) -> Run:
    """A run whose update takes 2 s and whose step takes 1 s, with accuracy 0.5 - 1 / updates."""
    updates = len(steps) + sum(steps) / 2
    noise = random.Random(seed).gauss(0, 2e-4)
    accuracy = 0.5 - 1 / updates**power + noise
    return Run("made", tuple(steps), 2.0 * updates, accuracy)


RUNS = [made((k,) * n, 9 * n + k) for n in (10, 20, 40) for k in (2, 3, 4)]


def test_prices_and_accuracy_are_found_again() -> None:
    update, step = prices(RUNS)
    assert (update, step) == pytest.approx((2, 1))
    for power in (0.6, 1.0):
        found = [made(run.steps, seed, power) for seed, run in enumerate(RUNS)]
        fit = fitted([(updates_of(run, update, step), run.accuracy) for run in found])
        assert fit.power == pytest.approx(power, abs=0.1)
        assert (fit.a, fit.b) == pytest.approx((0.5, 1), abs=0.05 + abs(fit.power - power))
        assert fit(35) == pytest.approx(0.5 - 1 / 35**power, abs=fit.half_width)
        assert 2e-4 < fit.half_width < 2e-3


def test_runs_that_were_given_a_time_tell_no_prices() -> None:
    """Perhaps they were not compiled. They are fitted also if K stays below 2."""
    slow = replace(made((1,) * 10, 1), seconds=100.0, timed=True)
    assert prices([*RUNS, slow]) == prices(RUNS)
    assert rising([slow, *RUNS])[0] is slow


def test_the_interval_holds_how_budgets_deviate_however_many_runs_they_have() -> None:
    def half(runs: int, deviation: float) -> float:
        budgets = {10.0 + i: 0.5 - 1 / (10 + i) + deviation * (-1) ** i for i in range(9)}
        noise = random.Random(0)
        every = [(u, a + noise.gauss(0, 1e-3)) for u, a in budgets.items() for _ in range(runs)]
        return fitted(every).half_width

    assert 0.003 > half(50, 0.0) > 0.002  # the noise of a run
    assert half(50, 0.005) == pytest.approx(half(5, 0.005), rel=0.1)
    assert half(50, 0.005) > 0.012


def test_single_steps_and_falling_schedules_are_left_out() -> None:
    others = [made(steps, 1) for steps in ((1, 1), (3, 2), (1, 2))]
    assert rising(others) == others[2:]


def test_a_budget_is_predicted_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [replace(r, accuracy=r.accuracy + 0.05 * (len(r.steps) == 10)) for r in RUNS]
    monkeypatch.setattr(time_rule, "runs", lambda: moved)
    off = max(abs(seen - said) for _, seen, said, _, _ in time_rule.held_out())
    assert off > 0.02  # what holds for short runs only is not predicted from the others
    monkeypatch.setattr(time_rule, "runs", lambda: RUNS)
    assert all(abs(seen - said) < 0.005 for _, seen, said, _, _ in time_rule.held_out())


def test_runs_of_equal_cost_show_how_epochs_and_steps_trade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself, as soon as they are stored."""
    assert "No stored runs of equal cost" in time_rule.trade() or "| epochs |" in time_rule.trade()
    found = [made((2,) * 20, 1), made((2,) * 20, 2), made((3,) * 16, 3), made((4,) * 10, 4)]
    monkeypatch.setattr(time_rule, "runs", lambda: found)
    rows = time_rule.trade().splitlines()[2:]
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| 40.0", "16", "3", "1"],
        ["| 40.0", "20", "2", "2"],
    ]
    # Ten epochs at K = 4 cost as much as many more epochs by the rule: they are not fitted.
    assert [updates for _, updates, _ in time_rule.points()] == pytest.approx([40, 40, 40])


def test_a_run_that_collapsed_is_named_and_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Run("lost", RUNS[0].steps, RUNS[0].seconds, 0.01)
    monkeypatch.setattr(time_rule, "runs", lambda: RUNS)
    before = [accuracy for _, _, accuracy in time_rule.points()]
    monkeypatch.setattr(time_rule, "runs", lambda: [*RUNS, lost])
    assert [accuracy for _, _, accuracy in time_rule.points()] == before
    assert time_rule.collapses() == " Left out, because they collapsed: `lost`."


def test_runs_that_cannot_be_read_are_named() -> None:
    counted = len(time_rule.unreadable())
    assert (f"Not read: {counted} stored runs" in time_rule.left_out()) is (counted > 0)
