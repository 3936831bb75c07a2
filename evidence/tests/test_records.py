"""The tables of the speed records."""

from pathlib import Path

import torch
from written import write_run

import records
from amata.runs import RunFolder


def test_wall_seconds_leave_out_resumed_runs_and_those_without_a_record(tmp_path: Path) -> None:
    def run(name: str, train: float, total: float, evaluate: float = 2.0) -> Path:
        parts = dict.fromkeys(("start", "data", "compile", "valid", "save"), 0.0)
        parts |= {"train": train, "evaluate": evaluate, "total": total}
        write_run(tmp_path / name, [{}], train_seconds=10.0, wall_seconds=parts)
        return tmp_path / name

    write_run(tmp_path / "old", [{}], train_seconds=10.0)
    assert records.wall([tmp_path / "old", run("resumed", 1.0, 5.0)]) == "not recorded"
    whole = [run("first", 9.9, 32.4), run("second", 10.0, 14.2)]
    assert records.wall([tmp_path / "old", *whole]) == "12 to 30"
    assert records.wall(whole[1:]) == "12"


def test_an_attempt_says_how_many_seeds_it_lacks(tmp_path: Path) -> None:
    claim = {"autoattack": 0.48, "clean": 0.78}
    stored = [tmp_path / str(seed) for seed in range(3)]
    for run in stored:
        write_run(run, [{}], train_seconds=10.0)
        RunFolder(run).record_start(torch.device("cpu"), {})

    def answer(*accuracies: dict[str, float]) -> str:
        runs = stored[: len(accuracies)]
        results = [{a: {"accuracy": value} for a, value in one.items()} for one in accuracies]
        return records.row(claim, runs, results, "a study")[1]

    good, bad = {"autoattack": 0.49, "clean": 0.8}, {"autoattack": 0.44, "clean": 0.8}
    assert answer() == answer({"clean": 0.8}) == "not measured yet"
    assert answer(good) == "1 of 3 seeds"
    assert answer(good, good, {"clean": 0.8}) == "2 of 3 seeds"
    assert answer(good, good, good) == "yes"
    assert answer(good, good, bad) == "no"
