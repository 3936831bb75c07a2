"""The README keeps its promises: its numbers come from files, its Python runs, its length is kept."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_table_is_what_the_results_say() -> None:
    subprocess.run([sys.executable, "tools/readme.py", "--check"], cwd=ROOT, check=True)


def test_the_table_of_methods_is_what_the_results_say() -> None:
    subprocess.run([sys.executable, "tools/methods.py", "--check"], cwd=ROOT, check=True)


def test_the_control_page_is_what_the_results_say() -> None:
    subprocess.run([sys.executable, "tools/control.py", "--check"], cwd=ROOT, check=True)


def test_the_engine_page_is_what_the_results_say() -> None:
    subprocess.run([sys.executable, "tools/engine.py", "--check"], cwd=ROOT, check=True)


def test_pictures_and_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_method_has_a_page_and_a_line() -> None:
    from amata.methods import METHODS

    index = (ROOT / "docs" / "methods" / "README.md").read_text()
    for name in METHODS:
        assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()
        assert f"[`{name}`]({name}.md)" in index


CONTROL = (ROOT / "docs" / "control.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", TEXT + CONTROL, re.S))
def test_its_python_runs(code: str) -> None:
    subprocess.run([sys.executable, "-c", f"import amata\n{code}"], cwd=ROOT, check=True, capture_output=True)


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 150
