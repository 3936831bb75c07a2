"""The README keeps its promises: its Python runs, its links lead somewhere, it is short."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from amata.methods import METHODS
from tests.conftest import WHOLE

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
CONTROL = (ROOT / "docs" / "control.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()


@WHOLE
def test_its_links_lead_somewhere() -> None:
    """An sdist has no evidence/; the links lead to the repository's."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", TEXT)
    assert "docs/index.md" in targets
    shipped = (ROOT / "evidence").is_dir()
    for target in targets:
        if shipped or not target.startswith("evidence/"):
            assert (ROOT / target).exists(), target


TO_TAG = "https://host/me/amata"
MOVED = {  # a line -> on the package page of a repository, and without one
    "[a](docs/a.md#b)": (f"[a]({TO_TAG}/blob/v1.2.3/docs/a.md#b)", "a"),
    "![a](docs/a.svg)": (f"![a]({TO_TAG}/raw/v1.2.3/docs/a.svg)", ""),
    "[a](https://arxiv.org)": ("[a](https://arxiv.org)", "[a](https://arxiv.org)"),
    "[`a`](b), [c](d)": (f"[`a`]({TO_TAG}/blob/v1.2.3/b), [c]({TO_TAG}/blob/v1.2.3/d)", "`a`, c"),
    "```\nx[0](y)\n```\n": ("```\nx[0](y)\n```\n", "```\nx[0](y)\n```\n"),
}


@pytest.mark.parametrize("line", MOVED)
def test_the_package_page_has_no_relative_link(line: str) -> None:
    absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
    assert (absolute(line, f"{TO_TAG}/", "v1.2.3"), absolute(line, None, "v1.2.3")) == MOVED[line]


@pytest.mark.slow
@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", TEXT + CONTROL, re.S))
def test_its_python_runs(code: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import amata\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_the_python_of_the_page_from_python_runs(tmp_path: Path) -> None:
    """In one process: its first block is shared by the others. Each of them alone runs with it."""
    first, *others = re.findall(r"```python\n(.*?)```", PYTHON, re.S)
    alone = [
        f"exec(compile({first!r}, 'first block', 'exec'), names := {{'__name__': 'page'}})",
        *(
            f"exec(compile({code!r}, 'block {number}', 'exec'), {{**names}})"
            for number, code in enumerate(others, start=2)
        ),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(alone)], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    for said in ("Result(accuracy=", "did you mean 'epochs'", "lr -1: SGD(): lr: input should be"):
        assert said in ran.stdout


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_every_method_has_a_page_and_a_line() -> None:
    index = (ROOT / "docs" / "methods" / "README.md").read_text()
    for name in METHODS:
        assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()
        assert f"[`{name}`]({name}.md)" in index
