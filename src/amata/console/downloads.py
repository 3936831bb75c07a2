"""The progress of downloads: a bar per file on a terminal, nothing in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from amata.console.streams import err


@contextmanager
def downloading() -> Iterator[Callable[[str, int, int | None], None]]:
    """A function to call with a file's name, its bytes so far, and the total or None."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:

        def update(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=None)
            progress.update(tasks[name], completed=done, total=total)

        yield update
