"""The Typer app, and options that several commands share."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from amata.errors import InputError, Interrupted, printable


class Commands(TyperGroup):
    """Prints the line of an interrupted run. typer would drop it, and its exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as stopped:
            print(f"error: {printable(stopped)}", file=sys.stderr)
            raise SystemExit(stopped.exit_code) from None


app = typer.Typer(
    cls=Commands,
    help="Adversarial training at a fraction of its usual cost.",
    add_completion=False,
    rich_markup_mode=None,
)

Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="TABLE.KEY=VALUE", help="Override a key of the recipe; may be repeated."
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that the recipe in the run or weights file names."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def version(show: bool) -> None:
    if show:
        from amata import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def amata(
    show: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Adversarial training at a fraction of its usual cost."""


def whole_numbers(text: str, name: str) -> list[int]:
    """Parse an option such as 128,512."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(
            f"{name} {text!r} must be whole numbers separated by commas, as in {name} 128,512"
        ) from None
    if any(n < 1 for n in numbers):
        raise InputError(f"{name} {text!r} must be at least 1")
    return numbers


CREATED: list[Path] = []
"""The output folders that this command created."""


def make_folder(path: Path) -> None:
    """Create an output folder before the work begins."""
    if (path / "recipe.toml").is_file():
        raise InputError(f"{path} is a run folder; choose another --out")
    CREATED.extend(folder for folder in reversed((path, *path.parents)) if not folder.is_dir())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create output folder {path} ({error.strerror}); choose another --out"
        ) from None


def remove_empty_folders() -> None:
    """Remove the created folders that are still empty."""
    while CREATED:
        with contextlib.suppress(OSError):  # not empty, or not there
            CREATED.pop().rmdir()
