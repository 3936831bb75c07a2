"""Rewrites docs/commands.md from the help of the commands: python evidence/commands.py (--check
only compares)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from amata.cli import app
from page import markdown, refuse_others, rewrite

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


def rows(command: Any, name: str) -> Iterator[list[str]]:
    """The row of a command, then those of its own commands."""
    example = " ".join((command.epilog or "").split()).removeprefix("Example: ")
    if example:
        yield [f"`{name}`", command.get_short_help_str(200), f"`{example}`"]
    for own, inner in getattr(command, "commands", {}).items():
        yield from rows(inner, f"{name} {own}")


def commands() -> str:
    root: Any = typer.main.get_command(app)
    head = ["command", "what it does", "example"]
    tables = []
    for title, names in root.panels().items():
        found = [row for name in names for row in rows(root.commands[name], name)]
        tables.append(f"## {title}\n\n{markdown(head, found)}")
    return "\n\n".join(tables)


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    rewrite({PAGE: {"commands": commands}}, "commands")
