"""The Typer app, and options that several commands share."""

import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from amata.errors import InputError, Interrupted, printable, unknown

if TYPE_CHECKING:
    from amata.reporter import Reporter


PANELS = {
    "Commands": "train plan eval compare predict audit init report export",
    "Studies": "search msa criterion landscape bench toy convergence",
    "Data and recipes": "data recipes",
}
"""The commands in the order of --help. One that is missing here comes last."""


class Commands(TyperGroup):
    """Lists commands in panels, and prints the line of an interrupted run. typer would drop that
    line, and its exit status."""

    def panels(self) -> dict[str, list[str]]:
        """The names of the commands, by the title above them in --help."""
        panels = {title: words.split() for title, words in PANELS.items()}
        known = [name for names in panels.values() for name in names]
        panels["Others"] = [name for name in self.commands if name not in known]
        there = {t: [n for n in names if n in self.commands] for t, names in panels.items()}
        return {title: names for title, names in there.items() if names}

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in self.panels().values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        for title, names in self.panels().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{n:{width}}", self.commands[n].get_short_help_str(200)) for n in names]
                )

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as stopped:
            print(printable(stopped), file=sys.stderr)
            raise SystemExit(stopped.exit_code) from None


app = typer.Typer(
    cls=Commands,
    help="Adversarial training at a fraction of its usual cost.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
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
Eps = Annotated[
    str | None, typer.Option(help="Radius of the ball, as in 8/255; default: the recipe's.")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Stretch the recipe to N epochs, with its milestones, warm-up and stages.",
    ),
]
Seed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Seed: short for --set train.seed=N.")
]
Engine = Annotated[
    str | None, typer.Option(help="plain, fast or auto: short for --set train.engine=...")
]
Precision = Annotated[
    str | None, typer.Option(help="fp32, bf16 or auto: short for --set train.precision=...")
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="At most N training images: short for --set data.limit=N."
    ),
]
Log = Annotated[
    list[str],
    typer.Option(metavar="wandb|mlflow", help="Log the run there too; may be repeated."),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        max=1000,
        metavar="N",
        help="Runs at the same time, one per GPU; on a CPU they share its threads.",
    ),
]
Sha256 = Annotated[
    str | None,
    typer.Option("--sha256", metavar="HEX", help="Checksum of the weights file; a URL needs it."),
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


def short_forms(**given: Any) -> list[str]:
    """The overrides that short options stand for: train_seed=3 is train.seed=3."""
    return [
        f"{name.replace('_', '.', 1)}={str(value).lower() if value is True else value}"
        for name, value in given.items()
        if value is not None
    ]


class Notes(logging.Handler):
    """Prints warnings of the library, such as a cache that cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        from amata.console import err

        err.say(f"note: {record.getMessage()}")


NOTES = Notes(logging.WARNING)


def reporters(log: Iterable[str]) -> "Reporter":
    """The console, and the services of --log."""
    from amata.console import ConsoleReporter
    from amata.loggers import LOGGERS
    from amata.reporter import Reporters

    for name in log:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
    return Reporters(ConsoleReporter(), *(LOGGERS[name]() for name in log))


def complete_recipe(incomplete: str) -> list[str]:
    """The built-in recipes, for shell completion. Without one of them the shell completes files."""
    from amata.recipes import built_in

    return [name for name in built_in() if name.startswith(incomplete)]


def whole_numbers(text: str, name: str, most: int = 10_000) -> list[int]:
    """Parse an option such as 128,512."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(
            f"{name} {text!r} must be whole numbers separated by commas, as in {name} 128,512"
        ) from None
    if any(not 1 <= n <= most for n in numbers):
        raise InputError(f"{name} {text!r} must be from 1 to {most:,}")
    return numbers


def check_attacks(names: Iterable[str]) -> None:
    """Refuse unknown attacks."""
    from amata.evaluation import parse_attack
    from amata.evaluation.corruptions import is_attack

    for name in filter(is_attack, names):
        parse_attack(name)


CREATED: list[Path] = []
"""The output folders that this command created."""


def make_folder(path: Path, *files: str) -> None:
    """Create an output folder before the work begins, and remember what was created."""
    from amata.runs.files import make_output  # imports torch, which --help does not need

    CREATED.extend(make_output(path, *files))


def remove_empty_folders() -> None:
    """Remove the created folders that are still empty."""
    if CREATED:
        from amata.runs.files import remove_empty

        remove_empty(CREATED)
        CREATED.clear()
