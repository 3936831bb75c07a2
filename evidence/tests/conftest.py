"""Makes the evidence scripts importable, and every test forget what others have read."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _read_again() -> Iterator[None]:
    """Tests put other results in place of the stored ones."""
    yield
    import differences

    differences.collapsed.cache_clear()
