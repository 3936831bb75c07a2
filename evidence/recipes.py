"""Rewrites docs/recipes.md from where keys are defined: python evidence/recipes.py (--check only
compares)."""

from pathlib import Path

from amata.recipes.reference import Section, sections
from page import refuse_others, rewrite

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"


def written(section: Section) -> str:
    lines = [f"## `{section.title}`"]
    if section.text:
        lines += ["", section.text]
    if section.keys:
        lines += ["", "| key | default | values | meaning |", "|---|---|---|---|"]
    for key in section.keys:
        default = "required" if key.required else f"`{key.default}`" if key.default else ""
        lines.append(f"| `{key.name}` | {default} | {key.values} | {key.text} |")
    return "\n".join(lines)


def keys() -> str:
    return "\n\n".join(map(written, sections()))


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    rewrite({PAGE: {"keys": keys}}, "recipes")
