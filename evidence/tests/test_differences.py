"""Differences between arms: their intervals, and the verdicts that follow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import write_run

import equal_cost
import equal_cost_picture
import steepness
import stored
import study
import verdicts
from amata.evaluation.result import pack
from amata.evaluation.steepness import Steepness
from amata.runs.files import write_record
from amata.studies.intervals import Estimate, over_seeds_and_images
from definition import FRONT, Sets, Study, Test
from differences import difference
from fronts import draw_front
from page import picture

RESULT = {"low": 0, "high": 1, "grad_evals": 0, "seconds": 1, "params": {}, "warnings": []}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty study of two constants and an annealed arm."""
    recipe: tuple[str, Sets] = ("mnist5k-pgd", ())
    arms = dict.fromkeys(("k1", "k2", "rising"), recipe)
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    monkeypatch.setitem(study.STUDIES, "small", Study(arms, ("pgd-20",), front=("k1", "k2")))
    return tmp_path / "small" / "runs"


def test_differences_are_paired_by_seed_and_image(small: Path) -> None:
    right = {"k1": [[1, 1, 0, 0], [1, 0, 0, 0]], "k2": [[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]}
    for title, seeds in right.items():
        for seed, bits in enumerate(seeds):
            accuracy = {
                **RESULT,
                "accuracy": sum(bits) / 4,
                "n": 4,
                "outcomes": pack(list(map(bool, bits))),
            }
            write_run(small / f"{title}-seed{seed}", [{}], evaluation={"pgd-20": accuracy})
    table = 100 * np.array([[0, 1, 0, 0], [0, 0, 0, 0]])
    assert difference("small", Test("k1", "k2"), "pgd-20") == over_seeds_and_images(table)
    assert difference("small", Test("k1", "k2"), "clean") is None
    assert difference("small", Test("k1", "rising"), "pgd-20") is None


def test_without_outcomes_only_seeds_are_held(small: Path) -> None:
    accuracies = {"k1": {0: 0.40, 1: 0.50, 2: 0.45, 3: 0.9}, "k2": {2: 0.44, 1: 0.47, 0: 0.38}}
    for title, seeds in accuracies.items():
        for seed, accuracy in seeds.items():
            evaluation = {"pgd-20": {**RESULT, "n": 10, "accuracy": accuracy}}
            write_run(small / f"{title}-seed{seed}", [{}], evaluation=evaluation)
    found = difference("small", Test("k1", "k2"), "pgd-20")
    assert found is not None
    assert (found.mean, found.half) == pytest.approx((2, 2.484), abs=1e-3)
    assert (found.seeds, found.images) == (3, False)


def test_the_front_is_taken_at_equal_gradient_evaluations(small: Path) -> None:
    found = {"k1": (2.0, [0.40, 0.44]), "k2": (3.0, [0.48, 0.48]), "rising": (2.25, [0.43, 0.45])}
    for title, (cost, accuracies) in found.items():
        for seed, accuracy in enumerate(accuracies):
            evaluation = {"pgd-20": {**RESULT, "n": 10, "accuracy": accuracy}}
            folder = small / f"{title}-seed{seed}"
            write_run(folder, [{}], evaluation=evaluation, grad_evals_per_image=cost)
    # a quarter of the way: 42 and 45%
    above = difference("small", Test("rising", "front"), "pgd-20")
    assert above is not None
    assert above.mean == pytest.approx(0.5)
    assert difference("small", Test("k2", "front"), "pgd-20") is not None


@pytest.mark.parametrize(
    ("mean", "half", "better", "as_good"),
    [
        (0.8, 0.5, "confirmed", "confirmed"),
        (0.2, 0.5, "open", "confirmed"),
        (0.1, 0.3, "not reproduced", "confirmed"),
        (0.1, 0.9, "open", "open"),
        (-0.4, 0.3, "not reproduced", "not reproduced"),
    ],
)
def test_verdicts(mean: float, half: float, better: str, as_good: str) -> None:
    found = Estimate(mean, half, 3, True)
    assert verdicts.decide("better", found, 0.5) == better
    assert verdicts.decide("as good", found, 0.5) == as_good
    assert verdicts.decide("better", Estimate(mean, half, 2, True), 0.5) == "open"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0, 2.0], [3.0, 4.0, 4.0], "confirmed"),
        ([1.0, 1.0, 1.0], [None, None, None], "confirmed"),
        ([1.0, 1.0, 4.0], [3.0, 3.0, 3.0], "open"),
        ([4.0, 4.0, None], [3.0, 3.0, 3.0], "not reproduced"),
        ([None, None, None], [None, None, None], "not reproduced"),
        ([1.0, 1.0, 1.0], [3.0], "open"),
    ],
)
def test_verdicts_on_times(
    first: list[float | None], second: list[float | None], expected: str
) -> None:
    assert verdicts.decide_times(first, second) == expected


def test_a_study_with_three_seeds_decides_before_one_with_fewer(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Test("rising", "k2")
    for name in ("small", "newer"):
        monkeypatch.setitem(study.STUDIES, name, replace(study.STUDIES["small"], equal=(pair,)))
    claim = {
        "kind": "better",
        "attack": "pgd-20",
        "tests": [["newer", "rising", "k2"], ["small", "rising", "k2"]],
    }
    places = [(name, seed) for name in ("newer", "small") for seed in range(3)]
    decided = []
    for name, seed in [places[0], *places[3:], *places[1:3]]:
        for title, accuracy in {"k2": 0.40, "rising": 0.41 + seed / 100}.items():
            evaluation = {"pgd-20": {**RESULT, "n": 10, "accuracy": accuracy}}
            folder = small.parents[1] / name / "runs" / f"{title}-seed{seed}"
            write_run(folder, [{}], evaluation=evaluation)
        equal = verdicts.at_equal_cost(claim)
        decided.append((verdicts.verdict(claim, 0.5)[2], equal and equal[0]))
    few, older, newer = ("newer", None), ("small", "small"), ("newer", "newer")
    assert decided == [few, few, few, older, older, newer]


def test_names_of_constants_cover_no_mark_and_no_other_name(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"k1": "constant 1", "k2": "constant 2 (PGD-2)", "rising": "linear"}
    monkeypatch.setitem(study.STUDIES, "small", replace(study.STUDIES["small"], labels=labels))
    for title, accuracy in {"k1": 0.48, "k2": 0.48, "rising": 0.47}.items():
        for seed in range(3):
            result = {**RESULT, "n": 100, "accuracy": accuracy + seed / 100}
            write_run(small / f"{title}-seed{seed}", [{}], evaluation={"pgd-20": result})
    with picture(small / "s.svg", 2, (6, 3)) as (ax, _):
        write = draw_front(ax, "small", {"k1": 2.99, "k2": 3.0, "rising": 3.0}, "cost")
        ax.figure.draw_without_rendering()
        write()
        names = {text.get_text(): text.get_window_extent() for text in ax.texts}
        marks = [line for line in ax.get_lines() if line.get_marker() != "None"]
        marked = [ax.transData.transform(xy) for line in marks for xy in line.get_xydata()]
        (front,) = (line for line in ax.get_lines() if line.get_marker() == "None")
        line = ax.transData.transform_path(front.get_path())
    first, second = names.pop("constant 1"), names.pop("constant 2 (PGD-2)")
    assert not names
    assert not first.overlaps(second)
    for box in (first, second):
        around = box.padded(3)
        assert not any(around.contains(*mark) for mark in marked)
        assert not line.intersects_bbox(box, filled=False)
        assert ax.bbox.contains(*box.min)
        assert ax.bbox.contains(*box.max)


@pytest.mark.parametrize(
    ("late", "verdict"),
    [((3.0, 2.8, 3.3), "confirmed"), ((0.5, 0.6, 0.4), "not reproduced"), ((3.0, 2.8), "open")],
)
def test_verdicts_on_steepness(
    small: Path, monkeypatch: pytest.MonkeyPatch, late: tuple[float, ...], verdict: str
) -> None:
    plain = study.STUDIES["small"]
    monkeypatch.setitem(
        study.STUDIES, "small", replace(plain, steepness=("k1",), labels={"k1": "K"})
    )
    claim = {"kind": "steeper", "arm": ["small", "k1"]}
    assert verdicts.verdict(claim, 0.5) == verdicts.NOT_MEASURED
    for seed, value in enumerate(late):
        write_run(small / f"k1-seed{seed}", [{}] * 4)
        norms = [1.0, 9.0, 9.0, value]
        rows = [
            {"epoch": i + 1, "images": 1000, **dict.fromkeys(Steepness._fields, norm)}
            for i, norm in enumerate(norms)
        ]
        write_record(small / f"k1-seed{seed}" / "steepness.json", {"epochs": rows})
    decision, number, name = verdicts.verdict(claim, 0.5)
    assert (decision, name) == (verdict, "small")
    assert number.startswith(f"ratio {np.exp(np.log(late).mean()):.2f}")
    table = steepness.steepness_table("small").splitlines()[-1]
    assert table.startswith(f"| K | 1 → {np.mean(late):.3g} |")
    with picture(small / "s.svg", 2, (4, 2)) as axes:
        steepness.draw_steepness(axes, "small")
    assert (small / "s.svg").stat().st_size > 1000


def at_equal_cost(monkeypatch: pytest.MonkeyPatch) -> tuple[Study, dict[str, Any]]:
    """The small study with labels and an equal pair, and a claim on that pair."""
    labels = {"k1": "constant 1", "k2": "constant 2", "rising": "linear 1 → 3"}
    own = replace(study.STUDIES["small"], labels=labels, equal=(Test("rising", "k2"),))
    monkeypatch.setitem(study.STUDIES, "small", own)
    monkeypatch.setitem(equal_cost.SHORT, "small", "a recipe")
    return own, {"kind": "better", "attack": "pgd-20", "tests": [["small", "rising", "k2"]]}


def test_the_readme_compares_at_equal_cost_as_soon_as_results_are_stored(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, claim = at_equal_cost(monkeypatch)
    stated: list[dict[str, Any]] = [
        {**claim, "readme": True},
        claim,
        {**claim, "tests": [["small", "rising", "k1"]]},
    ]
    monkeypatch.setattr(equal_cost, "claims", lambda: (stated, 0.5))
    found = {"k1": (0.43,) * 3, "k2": (0.4, 0.41, 0.4), "rising": (0.42,) * 3}
    for title, accuracies in found.items():
        for seed, accuracy in enumerate(accuracies):
            evaluation = {"pgd-20": {**RESULT, "n": 10, "accuracy": accuracy}}
            write_run(small / f"{title}-seed{seed}", [{}], evaluation=evaluation)
    lines = equal_cost.table().splitlines()
    row = "| a recipe | 1 → 3 | 2 | 42.00 | +1.67 ± 1.43 | yes |"
    last = (
        "Seeds per arm: 3. The table shows 1 of 1 arms that were compared at equal cost "
        "([all](docs/claims.md)). Annealing is better in 1, not in 0, and 0 are open, without a "
        "correction for multiple tests."
    )
    assert [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines[2:]] == [row, "", last]
    # At equal time every constant counts, and the line between them does not.
    every = (*own.equal, Test("rising", "k1"))
    monkeypatch.setitem(study.STUDIES, "small", replace(own, equal=(), equal_seconds=every))
    stated.append({**claim, "tests": [["small", "rising", FRONT]]})
    assert verdicts.at_equal_cost(stated[-1]) is None
    assert "better in 0, not in 1 (worse: a recipe: linear 1 → 3 minus constant 1, -1.00" in (
        equal_cost.table()
    )


def test_the_readme_has_the_differences_under_autoattack_and_on_clean_images(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, claim = at_equal_cost(monkeypatch)
    stated = [{**claim, "readme": True}, {**claim, "attack": "autoattack"}]
    monkeypatch.setattr(equal_cost, "claims", lambda: (stated, 0.5))
    for title, clean, strict in (("k2", 0.7, 0.3), ("rising", 0.71, 0.32)):
        for seed in range(3):
            accuracies = {"clean": clean, "pgd-20": 0.4, "autoattack": strict}
            evaluation = {k: {**RESULT, "n": 10, "accuracy": v} for k, v in accuracies.items()}
            write_run(small / f"{title}-seed{seed}", [{}], evaluation=evaluation)
    _, _, row, _, last = equal_cost.table().splitlines()
    row = row.replace("\N{NO-BREAK SPACE}", " ")
    assert row.endswith("| 40.00 | +0.00 ± 0.00 | no | +2.00 ± 0.00 | +1.00 ± 0.00 |")
    assert "1 of 1 arms" in last
    assert "better in 0, not in 1, and 0 are open" in last
    assert last.endswith(
        "Under AutoAttack 1 arm was compared: better in 1, not in 0, and 0 are open."
    )


def test_the_picture_has_every_comparison_at_equal_cost(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = at_equal_cost(monkeypatch)
    own = replace(own, about="Small", attacks=("pgd-20", "cw-pgd-20"), tests=own.equal)
    monkeypatch.setitem(study.STUDIES, "small", own)
    for title, robust, strict in (("k1", 0.3, 0.2), ("k2", 0.4, 0.2), ("rising", 0.3, 0.9)):
        for seed in range(3):
            accuracies = {"pgd-20": robust, "cw-pgd-20": 0.1, "autoattack": strict}
            evaluation = {k: {**RESULT, "n": 10, "accuracy": v} for k, v in accuracies.items()}
            write_run(small / f"{title}-seed{seed}", [{}], evaluation=evaluation)
    compared = equal_cost_picture.compared
    told = "1 → 3 against 2, 3 collapsed"  # below four fifths of the best arm
    rows = [
        (told, "pgd-20", "-10.00 ± 0.00", equal_cost_picture.WORSE),
        (told, "autoattack", "+70.00 ± 0.00", verdicts.CONFIRMED),
    ]
    found = compared(["small"])["Small"]
    shown = [(row.label, row.attack, str(row.gain), row.answer) for row in found]
    assert shown == rows
    equal_cost_picture.draw(tmp_path / "drawn.svg", ["small"])  # 70 points are beyond the axis
    assert "<svg" in (tmp_path / "drawn.svg").read_text()
    every = (Test("rising", "k1"), *own.equal)
    timed = replace(own, equal=(), equal_seconds=every)
    monkeypatch.setitem(study.STUDIES, "small", timed)
    first, _ = compared(["small"])["Small"]  # against the better of two constants
    assert (first.label.partition(",")[0], first.gain.mean) == ("1 s: 1 → 3 against 2", -10)


def test_claims_name_arms_that_exist_and_unmeasured_ones_are_open() -> None:
    verdicts.check()
    claims, margin = verdicts.claims()
    assert len({claim["text"] for claim in claims}) == len(claims) > 20
    nothing = {"kind": "better", "attack": "pgd-20", "tests": []}
    assert verdicts.verdict(nothing, margin)[:2] == ("open", "not measured")


def test_rolled_back_epochs_are_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    study, title = "cifar10-order", "linear-1-2"
    event = {"event": "catastrophic-overfitting", "epoch": 1}
    rows: list[dict[str, object]] = [{"grad_evals": 20}, event, {"grad_evals": 60}]
    folder = tmp_path / study / "runs" / f"{title}-seed0"
    write_run(folder, rows, epochs=2, grad_evals=60, grad_evals_per_image=2)
    (run,) = stored.summaries(study)[title]
    assert run["rolled_back"] == 1
    assert stored.total_cost([run]) == 6
    assert stored.costs(folder) == [2, 6]  # of ten images
