"""The two streams: stdout for results, stderr for progress."""

import os
from typing import Any

from rich.console import Console
from rich.text import Text

from amata.errors import printable

LOG_WIDTH = 120
"""Columns of a log, which has no window: a whole epoch line. COLUMNS changes it."""


class PlainConsole(Console):
    """Prints texts literally: names of files may look like markup or hold terminal codes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = LOG_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Called for every text, in a table too."""
        return super().render_str(printable(text), **options)


out = PlainConsole()
err = PlainConsole(stderr=True)
