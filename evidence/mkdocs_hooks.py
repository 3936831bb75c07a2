"""Hooks of the documentation site (mkdocs.yml): links that leave docs/ lead to copies in the site,
lines break where a reader expects it, and pictures open when they are clicked.

Pages link to pictures, pages and sources of the whole repository, as on GitHub. A picture or a page
keeps its path in the site; a source file becomes a page under source/ that shows it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
CODE = re.compile(r"<pre.*?</pre>|<code>(.*?)</code>", re.S)
CELL = re.compile(r"<td([^>]*)>(.*?)</td>", re.S)
PICTURE = re.compile(r'(?<!">)(<img [^>]*src="([^"]*)"[^>]*>)')
LONG_CELL, LONG_WORD = 40, 36
"""Characters: longer cells get a least width, longer words may break."""
LANGUAGES = {".py": "python", ".toml": "toml"}
"""Source files that are shown as pages, with their language."""


def uri(path: Path) -> str:
    """Where a file of the repository is in the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"source/{name}.md" if path.suffix in LANGUAGES else name


def targets(page: Path) -> dict[str, Path]:
    """The files that a page links to, by the link's text."""
    links = LINK.findall(page.read_text())
    return {link: found for link in links if (found := (page.parent / link).resolve()).is_file()}


def linked(text: str, page: Path) -> str:
    """The page's text with its links as the site has them."""
    found, folder = targets(page), posixpath.dirname(uri(page))

    def moved(match: re.Match[str]) -> str:
        target = found.get(match[1])
        return f"]({posixpath.relpath(uri(target), folder)}" if target else match[0]

    return LINK.sub(moved, text)


def outside(pages: list[Path]) -> set[Path]:
    """The files outside docs/ that pages link to, directly or by another page."""
    found: set[Path] = set()
    while pages:
        new = {t for page in pages for t in targets(page).values()} - found
        found |= {target for target in new if not target.is_relative_to(DOCS)}
        pages = [target for target in new & found if target.suffix == ".md"]
    return found


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    extra = [ROOT / "evidence" / "README.md"]
    for path in sorted({*extra, *outside([*DOCS.rglob("*.md"), *extra])}):
        if language := LANGUAGES.get(path.suffix):
            content = f"# {path.name}\n\n````{language}\n{path.read_text()}````\n"
            files.append(File.generated(config, uri(path), content=content))
        else:
            files.append(File.generated(config, uri(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.file.src_uri.startswith("source/"):
        return markdown
    own = DOCS / page.file.src_uri
    return linked(markdown, own if own.exists() else ROOT / page.file.src_uri)


def broken_well(html: str) -> str:
    """The page with code that breaks between words alone, numbers that keep their ±, and long cells
    marked as text."""

    def code(match: re.Match[str]) -> str:
        if match[1] is None:  # a block
            return match[0]
        words = (w if len(w) > LONG_WORD else f"<span>{w}</span>" for w in match[1].split(" "))
        return f"<code>{' '.join(words)}</code>"

    def cell(match: re.Match[str]) -> str:
        content = re.sub(r"(?<=[\d%–]) ([±·/→]) (?=[\d–])", "\u00a0\\1\u00a0", match[2])
        kind = ' class="text"' if len(re.sub(r"<[^>]*>", "", content)) > LONG_CELL else ""
        return f"<td{match[1]}{kind}>{content}</td>"

    return CODE.sub(code, CELL.sub(cell, html))


def opened(html: str) -> str:
    """The page with pictures that open alone when they are clicked: on a phone some are small."""
    return PICTURE.sub(r'<a href="\2">\1</a>', html)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return opened(broken_well(html))
