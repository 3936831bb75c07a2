"""The README keeps its promises: its numbers come from files, its Python runs, its length is
kept."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "tool", ["readme", "methods", "control", "engine", "paper", "records", "recipes"]
)
def test_a_pages_tables_are_what_the_results_say(tool: str) -> None:
    checked = subprocess.run(
        [sys.executable, f"evidence/{tool}.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_every_study_of_the_paper_can_be_planned_and_measures_runs_that_it_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from amata import recipes
    from amata.studies.plan import plan, run_name

    monkeypatch.syspath_prepend(str(ROOT / "evidence"))
    for study in importlib.import_module("study").STUDIES.values():
        for title, (base, sets) in study.recipes.items():
            (tmp_path / f"{title}.toml").write_text(
                recipes.load(base, [*sets, f"eval.attacks={list(study.attacks)}"]).to_toml()
            )
        notes: list[str] = []
        planned = plan(
            [str(tmp_path / f"{title}.toml") for title in study.recipes],
            [],
            study.seeds,
            notes.append,
        )
        assert notes == []  # nothing had to be made alike: the study says itself how all are tested
        assert all(recipe.eval.attacks == list(study.attacks) for recipe in planned)
        wanted = {
            a.removeprefix("runs/")
            for _, command in study.after
            for a in command
            if a.startswith("runs/")
        }
        assert wanted <= {run_name(recipe) for recipe in planned}


def test_pictures_and_links_lead_somewhere() -> None:
    for page in [
        ROOT / "README.md",
        ROOT / "evidence" / "records" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_method_has_a_page_and_a_line() -> None:
    from amata.methods import METHODS

    index = (ROOT / "docs" / "methods" / "README.md").read_text()
    for name in METHODS:
        assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()
        assert f"[`{name}`]({name}.md)" in index


CONTROL = (ROOT / "docs" / "control.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", TEXT + CONTROL, re.S))
def test_its_python_runs(code: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import amata\n{code}"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 150


NUMBER = re.compile(
    r"^[~≈]?[-+]?(\d{2,}|\d*[.,]\d+)[\d.,]*([ ]?(%|s|µs|ms|×|h|min))?([ ]?[±·(].*)?$"
)
"""A cell that holds a measurement; single digits count things."""


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "evidence/records/README.md",
        *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_numbers_in_tables_were_written_by_a_tool(page: str) -> None:
    """What lies between <!-- name --> and <!-- end --> comes from files under results/; nobody may
    type a number into a table beside it."""
    text = re.sub(
        r"<!-- [a-z0-9-]+ -->\n.*?<!-- end -->", "", (ROOT / page).read_text(), flags=re.S
    )
    typed = [
        cell.strip()
        for line in text.splitlines()
        if line.startswith("|")
        for cell in line.strip("| ").split("|")
    ]
    assert [cell for cell in typed if NUMBER.match(cell)] == []


def test_runs_whose_weights_are_still_needed_are_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "evidence"))
    study = importlib.import_module("study")
    # nothing is trained here
    monkeypatch.setattr(study, "amata", lambda *command, capture=False: "{}")
    attacked = study.autoattack("pgd-seed0")
    monkeypatch.setitem(
        study.STUDIES,
        "small",
        study.Study({"pgd": ("mnist5k-pgd", ())}, ("clean",), after=attacked),
    )
    kept, run = tmp_path / "kept", "runs/pgd-seed0/summary.json"
    (kept / run).parent.mkdir(parents=True)
    (kept / run).write_text("{}")
    study.measure("small", tmp_path / "first", kept)
    assert not (tmp_path / "first" / "small" / run).exists()
    assert (kept / "autoattack-pgd-seed0.json").is_file()
    study.measure("small", tmp_path / "second", kept)  # now nothing asks for them any more
    assert (tmp_path / "second" / "small" / run).is_file()


def test_a_threshold_that_one_of_two_never_reaches_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "evidence"))
    paper, kept, study = (importlib.import_module(tool) for tool in ("paper", "results", "study"))
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setitem(
        study.STUDIES,
        "small",
        study.Study({"slow": ("mnist5k-pgd", ()), "fast": ("mnist5k-amata", ())}, ("clean",)),
    )
    for title, course in {"slow": [0.5, 0.8, 0.9], "fast": [0.8, 0.7, 0.6]}.items():
        run = tmp_path / "small" / "runs" / f"{title}-seed0"
        run.mkdir(parents=True)
        seconds = 2 if title == "slow" else 1
        rows = [
            {"train_seconds": seconds * (i + 1), "valid": {"clean": 1.0, "pgd-20": robust}}
            for i, robust in enumerate(course)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "summary.json").write_text(json.dumps({"train_seconds": 3 * seconds}))
    told = paper.race("small", ("slow", "fast"), ("slow", "fast"), (0.8, 0.9, 0.95))()
    assert "| 80% | 4.0 s | 1.0 s | 4.00 |" in told
    assert "| 90% | 6.0 s | not reached |  |" in told
    assert "95%" not in told
    assert "| 6.0 s, 90.0% | 3.0 s, 80.0% | 2.00 |" in told
