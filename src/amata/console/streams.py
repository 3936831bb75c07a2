"""The two streams: stdout for results, stderr for progress."""

import os
import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text

from amata.errors import printable

LOG_WIDTH = 120
"""The width of tables in a log, which has no window; COLUMNS changes it."""


class PlainConsole(Console):
    """Prints texts literally: names of files may look like markup or hold terminal codes."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        self.windowed = self.is_terminal or os.environ.get("COLUMNS", "").isdigit()
        """Whether lines have to fit a width. Those of a log or a pipe do not."""
        if not self.windowed:
            self.width = LOG_WIDTH

    def say(self, text: str, style: str = "") -> None:
        """Print a sentence: broken between words on a terminal, one line in a log. A long path
        stays whole, to be copied."""
        width = self.width if self.is_terminal else 10**6
        whole = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        for part in whole.wrap(printable(text)):
            self.print(part, style=style, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called for every text, in a table too."""
        return super().render_str(printable(text), **options)


out = PlainConsole()
err = PlainConsole(stderr=True)
