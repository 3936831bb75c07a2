"""The README's numbers: recipes have short names, and the picture takes the newest study."""

from pathlib import Path

import pytest
from written import write_run

import equal_cost
import overview
import stored
from verdicts import claims

RESULT = {"low": 0, "high": 1, "grad_evals": 0, "seconds": 1, "params": {}, "warnings": []}


def test_every_recipe_of_the_table_has_a_short_name() -> None:
    shown = [claim["tests"] for claim in claims()[0] if claim.get("readme")]
    assert {study for tests in shown for study, *_ in tests} <= set(equal_cost.SHORT)


def test_the_picture_takes_the_first_study_with_results_without_collapsed_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    first, second = overview.RECIPES["fast recipe, 19 epochs"]
    accuracies = {"k1": 0.0, "k2": 0.45, "k3": 0.5, "linear-1-3": 0.45, "falling-3-1": 0.1}

    def write(study: str, titles: dict[str, float], seeds: range) -> None:
        for title, accuracy in titles.items():
            for seed in seeds:
                run = tmp_path / study / "runs" / f"{title}-seed{seed}"
                tested = {**RESULT, "accuracy": accuracy, "n": 10}
                write_run(run, [{}] * 19, epochs=19, evaluation={"pgd-20": tested})

    write(second, {"k1-tau10": 0.2, "k2": 0.3, "k3": 0.3, "linear-1-2": 0.3}, range(3))
    write(first, accuracies, range(2))
    assert overview.measured((first, second)) == second  # two seeds are too few
    write(first, accuracies, range(2, 3))
    constants, rising = overview.curves("fast recipe, 19 epochs")
    assert [label for _, _, label in constants] == ["constant 2", "constant 3"]
    assert [label for _, _, label in rising] == ["linear 1 → 3"]
