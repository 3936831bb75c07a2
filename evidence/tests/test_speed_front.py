"""The front over training time."""

from typing import Any

import pytest

import stored
from speed_front import Arm, after, arms_of, before, front


def arm(seconds: float, accuracy: float) -> Arm:
    run: dict[str, Any] = {
        "train_seconds": seconds,
        "evaluation": {"pgd-20": {"accuracy": accuracy}},
    }
    return Arm("linear 1 → 2", f"{seconds:g}", [run])


def test_only_what_no_faster_arm_equals_is_on_the_front() -> None:
    arms = [arm(20, 0.48), arm(10, 0.45), arm(15, 0.48), arm(12, 0.44), arm(30, 0.5)]
    assert [a.place for a in front(arms)] == ["10", "15", "30"]


def test_collapsed_arms_and_other_methods_are_left_out() -> None:
    labels = {a.label.partition(" ")[0] for a in [*before(), *after()]}
    assert labels == {"linear", "constant"}
    # Single steps of 13/255: all seeds of constant 1, and one of linear 1 -> 2, collapsed.
    found = {(a.place, a.label) for a in [*before(), *after()]}
    assert ("cifar10-quick-equal-cost", "constant 1, α = 10/255") in found
    assert ("cifar10-quick-equal-cost", "constant 1") not in found
    assert ("cifar10-fast-recipe", "linear 1 → 2") not in found


def test_a_study_counts_once_annealed_and_constant_arms_have_enough_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = stored.summaries("cifar10-13s")
    assert len(arms_of("cifar10-13s")) == 2
    fewer = measured | {"k2": measured["k2"][:2]}
    monkeypatch.setattr(stored, "summaries", lambda study: fewer)
    assert arms_of("cifar10-13s") == []
