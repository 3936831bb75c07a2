"""The section of a study."""

from pathlib import Path

import pytest

import stored
from study_section import provenance


def test_runs_that_were_started_twice_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(run: Path) -> stored.Rows:
        return [{"device": "a GPU", "commit": "c0ffee"}] * (2 if run.name == "k3-seed2" else 1)

    monkeypatch.setattr(stored, "environments", starts)
    found = provenance("cifar10-1m")
    assert found == "6 of 6 runs, commit `c0ffee`, a GPU. Interrupted and resumed: `k3-seed2`."
