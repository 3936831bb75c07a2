"""The command's root, and the options that several commands share."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from amata.errors import InputError

app = typer.Typer(
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
    """The numbers of an option like 128,512."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(
            f"{name} {text!r} must be whole numbers with commas between them, as in {name} 128,512"
        ) from None
    if any(n < 1 for n in numbers):
        raise InputError(f"{name} {text!r} must be at least 1")
    return numbers


MADE: list[Path] = []
"""The folders that this command has made for its output."""


def make_folder(path: Path) -> None:
    """Make an output folder before any work is done for it."""
    if (path / "recipe.toml").is_file():
        raise InputError(
            f"{path} is a run folder, which nothing else is written into; choose another --out"
        )
    MADE.extend(folder for folder in reversed((path, *path.parents)) if not folder.is_dir())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"output folder {path} cannot be made ({error.strerror}); choose another --out"
        ) from None


def remove_empty() -> None:
    """Take back the folders that nothing came into."""
    while MADE:
        with contextlib.suppress(OSError):  # it holds something, or is not there
            MADE.pop().rmdir()
