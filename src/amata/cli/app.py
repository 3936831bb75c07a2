"""The command's root, and the options that several commands share."""

from typing import Annotated

import typer

app = typer.Typer(help="Adversarial training at a fraction of its usual cost.", add_completion=False, rich_markup_mode=None)

Set = Annotated[list[str], typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key of the recipe; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def version(show: bool) -> None:
    if show:
        from amata import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def amata(show: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False) -> None:
    """Adversarial training at a fraction of its usual cost."""
