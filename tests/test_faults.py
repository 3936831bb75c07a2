"""A dozen fixed trials of tests/faults.py; `make faults` runs 200 random ones."""

import subprocess
import sys

import pytest

from tests.conftest import ENV, ROOT
from tests.faults import DOZEN, ROWS


@pytest.mark.slow
def test_a_dozen_faults_lose_nothing() -> None:
    """In a process of its own: the trials fork it, which a process with threads must not do."""
    call = [sys.executable, "-m", "tests.faults", "--dozen"]
    done = subprocess.run(call, env=ENV, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dozen_are_rows() -> None:
    assert {row for row, _ in DOZEN} <= set(ROWS)
    assert len(DOZEN) == 12
