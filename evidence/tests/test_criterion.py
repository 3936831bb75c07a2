"""Tables of C: what was measured is shown, what was not is named."""

import json
from pathlib import Path
from typing import Any

import pytest

import criterion
from study import STUDIES


def row(name: str, seed: int, **more: Any) -> dict[str, Any]:
    epochs = [{"steps": 3, "best_steps": 1 + seed}, {"steps": 3, "best_steps": 3}]
    return {
        "strategy": name,
        "c": 0.3 + seed,
        "c_stderr": 0.1,
        "c_of_means": 0.2,
        "gamma": 0.5,
        "fosc": 0.4,
        "robust_accuracy": 0.8,
        "robust_attack": "pgd-40",
        "robust_n": 1000,
        "grad_evals": 5000,
        "epochs": epochs,
        **more,
    }


SWEEP = [{"gamma": 0.5, "c": 0.3}, {"gamma": 0.0, "c": 0.125}]
NEW = {"feasible_gap": 0.25, "sweep": SWEEP}


@pytest.mark.parametrize("more", [{}, NEW], ids=["older", "newer"])
def test_the_feasible_gap_and_the_sweep_are_shown_once_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(criterion, "RESULTS", tmp_path)
    about = {"gamma": 0.5, "k_max": 4, "alphas": 2, "batches": 3}
    for seed in criterion.SEEDS:
        rows = [row(name, seed, **more) for name in criterion.STRATEGIES]
        (tmp_path / f"criterion-seed{seed}").mkdir()
        file = tmp_path / f"criterion-seed{seed}" / "criterion.json"
        file.write_text(json.dumps({"settings": about, "strategies": rows}))
    head, _, first, *_ = criterion.criterion_table().splitlines()
    assert ("feasible gap" in head) == bool(more)
    gap = " 0.25 |" if more else ""
    c = "0.30 ± 0.10 · 1.30 ± 0.10 · 2.30 ± 0.10"
    assert f"| {c} | 0.20 | 0.40 |{gap} 80.0 | 5,000 |" in first
    assert ("not measured yet" in criterion.criterion_table()) != bool(more)
    terms = criterion.terms_table()
    assert "| 0.20 | -0.30 · -0.05 · 0.20 | 0.50 · 0.25 · 0.00 |" in terms
    assert ("| 0.12 | 0.30 |" in terms) == bool(more)
    assert ("not measured yet" in terms) != bool(more)


def test_c_on_cifar10_is_read_from_the_commands_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(criterion, "STUDIES_DIR", tmp_path)
    assert "Not measured yet" in criterion.cifar10_table()
    for file, _ in STUDIES[criterion.CIFAR10].after:
        place = tmp_path / criterion.CIFAR10 / f"{file}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"gammas": [0.5, 0.0], "strategies": [row("x", 0, **NEW)]}))
    found = criterion.cifar10_table()
    assert "| linear 1 → 5 | 0.30 ± 0.10 | 0.20 | 0.40 | 0.25 | 80.0 | 5,000 |" in found
    assert "| constant 3 | 0.12 | 0.30 |" in found
