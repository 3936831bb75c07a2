"""The section of a study."""

import json
from pathlib import Path

import pytest

import annealing
import fronts
import origins
import stored
import study_section


def test_runs_that_were_started_twice_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(run: Path) -> stored.Rows:
        return [{"device": "a GPU", "commit": "c0ffee"}] * (2 if run.name == "k3-seed2" else 1)

    monkeypatch.setattr(stored, "environments", starts)
    found = study_section.provenance("cifar10-1m")
    pixels = "`7e7d906a8a7d6382` (train), `914be7954e88b3b2` (test)"
    assert found == (
        f"6 of 6 runs, commit `c0ffee`, a GPU. Hash of the pixels: {pixels}. "
        "Interrupted and resumed: `k3-seed2`."
    )


def test_data_without_a_hash_are_reported() -> None:
    runs = stored.runs_of("cifar10", "amata")
    assert origins.sentence(runs) == " The runs did not record a hash of the data."


def test_every_stored_run_says_where_it_was_made() -> None:
    """In the section of its study, or in the table of the others."""
    named = {*(f"paper/{study}" for study in annealing.begun()), *origins.groups()}
    runs = [file.parent for file in origins.RESULTS.rglob("env.json")]
    trained = [run.relative_to(origins.RESULTS) for run in runs if (run / "summary.json").is_file()]
    assert len(trained) > 600
    lacking = [run for run in trained if not named & {str(run), *map(str, run.parents)}]
    assert not lacking


def test_trials_without_a_run_are_reported_and_none_is_chosen_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    monkeypatch.setattr(study_section, "RESULTS", tmp_path)
    folder = tmp_path / "cifar10-1m-tuning" / "trials"
    folder.mkdir(parents=True)
    for trial in range(2):
        held_out = {"clean": 0.75, "apgd-t": 0.47 + trial / 100}
        written = {"held_out": held_out, "commit": "c0ffee", "device": "a GPU"}
        (folder / f"k3-{trial}.json").write_text(json.dumps(written))

    found = study_section.section("cifar10-1m-tuning")

    assert "`cifar10-1m-tuning`: 0 of 1 runs, commit `c0ffee`, a GPU." in found
    assert "| `optim.ema=0.9995 optim.ema_warmup=4` | 48.00 |" in found
    assert "**" not in found


def test_the_course_of_trials_is_shown_under_the_attack_that_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(study_section, "RESULTS", tmp_path)
    folder = tmp_path / "cifar10-5m-tuning" / "trials"
    folder.mkdir(parents=True)
    courses: list[list[tuple[int, str, float]]] = [
        [(10, "cw-pgd-20", 0.46), (100, "cw-pgd-20", 0.505)],
        [(76, "cw-pgd-20", 0.503)],  # validated once: no course
        [(10, "pgd-10", 0.5), (100, "pgd-10", 0.51)],
        [(10, "cw-pgd-20", 0.45), (76, "cw-pgd-20", 0.507)],
    ]
    for trial, course in enumerate(courses):
        rows = [(epoch, {"clean": 0.7, attack: value}) for epoch, attack, value in course]
        written = {"held_out": {"clean": 0.79, "cw-pgd-20": 0.5}, "course": rows}
        (folder / f"k3-{trial}.json").write_text(json.dumps(written))

    found = study_section.tuning_table("cifar10-5m-tuning")

    assert "| arm | held-out CW-PGD-20 % after epoch | 10 | 76 | 100 |" in found
    assert "| constant 3 | `optim.label_smoothing=0.2` | 46.0 |  | 50.5 |" in found
    assert found.count("| constant 3 | `") == 2
    assert "All trials have `train.valid_every=10`." in found
    assert "| as it is |  |" in found


def test_what_a_search_tried_and_what_adaptive_k_chose_is_reported() -> None:
    found = study_section.section("cifar10-closed-loop")

    assert "| exponential (eta 0.3) K 1 → 4, tau 18/255 | 10 | 4.00 | **39.5** |" in found
    assert found.count("**") == 2
    assert "No other arm was tuned" in found
    (line,) = (line for line in found.splitlines() if line.startswith("| adaptive | 1 |"))
    chosen = line.split("|")[3].split()
    assert (len(chosen), chosen[:6]) == (30, ["1", "4", "6", "5", "4", "4"])


def test_a_search_that_is_not_made_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    monkeypatch.setattr(study_section, "RESULTS", tmp_path)
    assert "The schedule is not searched yet." in study_section.section("cifar10-closed-loop")


def test_the_pair_with_the_most_seeds_is_drawn_over_the_epochs() -> None:
    """Linear 1 -> 3 and constant 2 are the study's first test, with three seeds."""
    assert fronts.pair("cifar10-paper-recipe") == ("linear-1-5", "k3")
