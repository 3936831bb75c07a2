"""The tables of the speed records."""

from pathlib import Path

from written import write_run

import records


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
