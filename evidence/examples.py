"""Writes the code of docs/loop.md from examples/, and examples/tutorial.ipynb from the tutorial:
python evidence/examples.py (--check compares them)."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

from page import refuse_others, rewrite

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TUTORIAL = ROOT / "docs" / "tutorial.md"
NOTEBOOK = EXAMPLES / "tutorial.ipynb"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.M | re.S)
"""A block of the tutorial that is run; others are only shown."""


def fenced(file: str, kind: type[ast.stmt]) -> str:
    """The first statement of a kind at the top level of an example, as a block of code."""
    source = (EXAMPLES / file).read_text()
    node = next(node for node in ast.parse(source).body if isinstance(node, kind))
    return f"```python\n{ast.get_source_segment(source, node)}\n```"


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks that are run, in order: bash or python, and the code."""
    return [(kind, code) for kind, code in BLOCK.findall(text)]


def notebook(text: str) -> dict[str, Any]:
    """The page as a notebook: commands get a `!`, everything else is text."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        if not source.strip():
            return
        # Links lead to the pages and pictures beside the tutorial.
        linked = re.sub(r"\]\((?!https?:)([^)]+\.(?:md|svg))", r"](../docs/\1", source)
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        lines = (linked if kind == "markdown" else source).strip().splitlines(keepends=True)
        cells.append(cell | {"source": lines})

    end = 0
    for match in BLOCK.finditer(text):
        add("markdown", text[end : match.start()])
        commands = re.sub(r"^(?=\S)", "!", match[2], flags=re.M)
        add("code", commands if match[1] == "bash" else match[2])
        end = match.end()
    add("markdown", text[end:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main() -> None:
    parts = {
        "lightning": lambda: fenced("lightning_loop.py", ast.ClassDef),
        "accelerate": lambda: fenced("accelerate_loop.py", ast.For),
    }
    rewrite({ROOT / "docs" / "loop.md": parts}, "examples")
    written = json.dumps(notebook(TUTORIAL.read_text()), indent=1, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(written)
    elif NOTEBOOK.read_text() != written:
        sys.exit("error: tutorial.ipynb differs from the tutorial; run python evidence/examples.py")


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    main()
