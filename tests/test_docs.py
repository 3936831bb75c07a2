"""The documentation site: every page is in the navigation, and its code and the examples run."""

import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import ENV, WHOLE, Called

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
EXAMPLES = {
    "own_loop": "mlxtend",
    "audit_model": "mlxtend",
    "finetune_folder": "mlxtend",
    "lightning_loop": "lightning",
    "accelerate_loop": "accelerate",
}
"""The examples, each with a package that it needs."""
LESS = {
    "train": "--epochs=1 --limit=80 --set=data.valid=20 --set=train.valid_attack=pgd-2 "
    "--set=train.tensorboard=false --set='eval.attacks=[\"clean\"]' --set=eval.limit=20",
    "audit": "--attacks=clean,pgd-2 --limit=8",
}
"""What a command of the tutorial gets in addition: the same steps on less data."""


def pages(nav: object) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(parts, str)
    return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]


@WHOLE
def test_every_page_is_in_the_navigation_once_and_the_kinds_are_apart() -> None:
    listed = pages(CONFIG["nav"])
    assert len(set(listed)) == len(listed)
    own = {page for page in listed if (DOCS / page).is_file()}
    assert own == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert all((ROOT / page).is_file() for page in set(listed) - own)
    kinds = [next(iter(part)) for part in CONFIG["nav"]]
    assert kinds == ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Measurements"]


def test_the_site_needs_no_network() -> None:
    assert CONFIG["strict"] is True
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    for file in [*CONFIG["extra_css"], *CONFIG["extra"]["polyfills"]]:
        assert "http" not in (DOCS / file).read_text()


def test_the_api_page_has_every_public_name() -> None:
    """All but modules."""
    stub = (ROOT / "src" / "amata" / "__init__.pyi").read_text()
    names = set(re.findall(r"^from \.\w[\w.]* import \w+ as (\w+)$", stub, re.M))
    shown = set(re.findall(r"^::: amata\.(\w+)$(?!\n    )", (DOCS / "api.md").read_text(), re.M))
    assert shown == names - {"criterion"}


@pytest.mark.slow
def test_the_tutorial_runs(
    amata: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(
        r"^```(bash|python)\n(.*?)^```", (DOCS / "tutorial.md").read_text(), re.M | re.S
    )
    assert len(blocks) == 8
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, "tutorial.md", "exec"), names)
            continue
        for line in code.splitlines():
            _, command, *arguments = shlex.split(line)
            called = amata(command, *arguments, *shlex.split(LESS.get(command, "")))
            assert called.code == 0, called.err
    assert Path("audit/audit.html").is_file()
    assert Path("runs/photos/summary.json").is_file()


@pytest.mark.parametrize("page", ["loop.md", "your-method.md", "audit.md"])
def test_the_first_block_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.search(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)
    assert found
    with torch.random.fork_rng(devices=[]):
        exec(compile(found[1], page, "exec"), {})


def test_every_example_is_tried() -> None:
    assert {file.stem for file in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(EXAMPLES[name])
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


def test_the_lightning_callback_is_short() -> None:
    source = (ROOT / "examples" / "lightning_loop.py").read_text()
    callback = source.split("class Anneal", 1)[1].split("\n\n\n", 1)[0]
    assert len(callback.splitlines()) <= 30


def test_the_links_of_the_notebook_lead_somewhere() -> None:
    text = (ROOT / "examples" / "tutorial.ipynb").read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert "../docs/gallery.svg" in targets
    assert [target for target in targets if not (ROOT / "examples" / target).is_file()] == []


@pytest.mark.slow
def test_the_notebook_of_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(ROOT / "examples" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.source.startswith("!amata"):
            command = cell.source.split()[1]
            less = shlex.split(LESS.get(command, ""))
            line = f"{cell.source.removeprefix('!amata')} {shlex.join(less)}"
            cell.source = f"!{sys.executable} -m amata{line}\nassert _exit_code == 0"
    monkeypatch.setattr(os, "environ", {**os.environ, **ENV})
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=place).execute()
    assert (tmp_path / "runs" / "photos" / "summary.json").is_file()
