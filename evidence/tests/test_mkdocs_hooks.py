"""The documentation site: links that leave docs/ lead into the site."""

import pytest

from mkdocs_hooks import DOCS, ROOT, broken_well, linked, opened, outside

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


LONG = "word " * 10
BREAKS = {
    "code": ("<code>a --b</code>", "<code><span>a</span> <span>--b</span></code>"),
    "a long word": (f"<code>{'x' * 40}</code>", f"<code>{'x' * 40}</code>"),
    "a block": ("<pre><code>a --b</code></pre>", "<pre><code>a --b</code></pre>"),
    "a number": (
        "<td>4.1 ± 0.2 / 3 → –</td>",
        "<td>4.1\u00a0±\u00a00.2\u00a0/\u00a03\u00a0→\u00a0–</td>",
    ),
    "a text": (f"<td>{LONG}</td>", f'<td class="text">{LONG}</td>'),
    "a number in a paragraph": ("<p>1 / 2</p>", "<p>1 / 2</p>"),
}


@pytest.mark.parametrize(("html", "broken"), BREAKS.values(), ids=BREAKS)
def test_lines_break_where_a_reader_expects_it(html: str, broken: str) -> None:
    assert broken_well(html) == broken


def test_a_picture_opens_alone() -> None:
    image = '<img alt="a" src="a.svg">'
    assert opened(f"<p>{image}</p>") == f'<p><a href="a.svg">{image}</a></p>'
    assert opened(f'<a href="b">{image}</a>') == f'<a href="b">{image}</a>'
