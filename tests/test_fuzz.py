"""The findings of the past and a few fixed examples of tests/fuzz.py; `make fuzz` runs ten minutes
of random ones."""

import subprocess
import sys

import pytest

from tests.conftest import ENV, ROOT


@pytest.mark.slow
def test_hostile_input_ends_with_one_line() -> None:
    """In a process of its own: each example forks it, which a process with threads must not do."""
    call = [sys.executable, "-m", "tests.fuzz", "--fixed"]
    done = subprocess.run(call, env=ENV, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
