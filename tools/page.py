"""A page whose marked parts are written from files: <!-- NAME --> ... <!-- end -->."""

import sys
from collections.abc import Callable
from pathlib import Path


def rewrite(page: Path, parts: dict[str, Callable[[], str]], tool: str) -> None:
    """Write every part anew; with --check only say whether the page is what it would be."""
    old = new = page.read_text()
    for name, write in parts.items():
        head, tail = new.split(f"<!-- {name} -->\n", 1)
        new = f"{head}<!-- {name} -->\n{write()}\n<!-- end -->{tail.split('<!-- end -->', 1)[1]}"
    if "--check" in sys.argv:
        sys.exit(new != old and f"error: {page.name} is not what results/ say; run python tools/{tool}.py")
    page.write_text(new)
