"""The package page's description: README.md with links that work outside the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
"""A link or a picture of this repository, outside blocks of code."""


def absolute(text: str, repository: str | None, tag: str) -> str:
    """The text with absolute links, of a GitHub repository at a tag. Without a repository links
    become plain text, and pictures are left out: a dead link helps nobody."""

    def moved(match: re.Match[str]) -> str:
        picture, title, target = match.groups()
        if repository is None:
            return "" if picture else title
        kind = "raw" if picture else "blob"
        return f"{picture}[{title}]({repository.rstrip('/')}/{kind}/{tag}/{target})"

    blocks = re.split(r"(^```.*?^```\n)", text, flags=re.M | re.S)
    blocks[::2] = [LINK.sub(moved, part) for part in blocks[::2]]
    return "".join(blocks)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"].get("Repository")
        described = absolute(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": described}
