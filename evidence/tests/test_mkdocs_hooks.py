"""The documentation site: links that leave docs/ lead into the site."""

import pytest

from mkdocs_hooks import DOCS, ROOT, linked, outside

CASES = {
    "a page of docs": ("[a](engine.md#x)", "[a](engine.md#x)"),
    "a picture": ("![a](../docs/cifar10.svg)", "![a](cifar10.svg)"),
    "a page of the evidence": ("[a](../evidence/README.md)", "[a](evidence/README.md)"),
    "an address": ("[a](https://arxiv.org/abs/1)", "[a](https://arxiv.org/abs/1)"),
}


@pytest.mark.parametrize(("text", "moved"), CASES.values(), ids=CASES)
def test_a_link_leads_into_the_site(text: str, moved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "index.md"
    found = {"../docs/cifar10.svg": DOCS / "cifar10.svg", "engine.md": DOCS / "engine.md"}
    found["../evidence/README.md"] = ROOT / "evidence" / "README.md"
    monkeypatch.setattr("mkdocs_hooks.targets", lambda page: found)
    assert linked(text, page) == moved


def test_sources_become_pages_and_linked_pages_are_followed() -> None:
    page = DOCS / "methods" / "pgd.md"
    assert "](../source/src/amata/methods/pgd.py.md)" in linked(page.read_text(), page)
    evidence = ROOT / "evidence"
    assert evidence / "records" / "pgd20.toml" in outside([evidence / "README.md"])
