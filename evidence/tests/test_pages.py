"""Pages: links lead somewhere, and no number is typed into a table."""

import re
from pathlib import Path

import pytest

from page import filled

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "evidence").glob("**/README.md")),
]
NUMBER = re.compile(
    r"^[~≈]?[-+]?(\d{2,}|\d*[.,]\d+)[\d.,]*([ ]?(%|s|µs|ms|×|h|min))?([ ]?[±·(].*)?$"
)
"""A cell that holds a measurement; single digits count things."""


def typed_numbers(text: str) -> list[str]:
    """Measurements in table cells outside the generated parts."""
    text = re.sub(r"<!-- [a-z0-9-]+ -->\n.*?<!-- end -->", "", text, flags=re.S)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in row.strip("| ").split("|")]
    return [cell for cell in cells if NUMBER.match(cell)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere_and_no_measurement_is_typed_into_a_table(page: Path) -> None:
    text = page.read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"
    assert typed_numbers(text) == []


def test_a_typed_measurement_is_found_and_a_generated_one_is_not() -> None:
    page = (
        "| a | b |\n|---|---|\n| PGD-20 | 45.9 ± 0.3 |\n<!-- x -->\n| PGD-20 | 45.9 |\n<!-- end -->"
    )
    assert typed_numbers(page) == ["45.9 ± 0.3"]


def test_every_stored_picture_and_text_file_is_shown_or_read() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    scripts = "".join(file.read_text() for file in (ROOT / "evidence").glob("*.py"))
    stored = [
        file
        for folder in ("docs", "evidence/results", "evidence/records")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".svg", ".png", ".txt", ".md") and file not in PAGES
    ]
    assert stored
    assert [f for f in stored if f.name not in pages + scripts] == []


def test_only_the_marked_parts_of_a_page_change() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end -->\nbetween\n<!-- b -->\nold\n<!-- end -->\nafter\n"
    assert filled(page, {"a": lambda: "new"}) == page.replace("old", "new", 1)
