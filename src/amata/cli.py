"""The `amata` command. Torch is imported by the commands that need it, not by --help."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from amata.errors import AmataError, InputError, unknown

app = typer.Typer(help="Adversarial training at a fraction of its usual cost.", add_completion=False, rich_markup_mode=None)
recipes_app = typer.Typer(help="The built-in recipes.", invoke_without_command=True)
data_app = typer.Typer(help="Data sets: list, fetch, check.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")

Set = Annotated[list[str], typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key of the recipe; may be repeated.")]


@app.command(epilog="Example: amata train mnist5k-amata --set train.epochs=5 --out runs/first")
def train(
    recipe: Annotated[str | None, typer.Argument(help="A built-in recipe's name, or a TOML file.")] = None,
    set_: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; runs/RECIPE by default.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")] = None,
) -> None:
    """Train a model by a recipe, evaluate it, and leave a run folder."""
    if (recipe is None) == (resume is None):
        raise InputError("give a recipe or --resume RUN, one of the two; `amata recipes` lists the recipes")
    if resume is not None and out is not None:
        raise InputError("--resume goes on in its own folder; leave --out away")
    from amata import recipes as recipe_room
    from amata.console import ConsoleReporter, results_table
    from amata.console import out as console
    from amata.training.experiment import resume as resume_run
    from amata.training.experiment import train as train_recipe

    with ConsoleReporter() as reporter:
        if resume is not None:
            run = resume_run(resume, tuple(set_), reporter)
        else:
            assert recipe is not None
            loaded = recipe_room.load(recipe, set_)
            run = train_recipe(loaded, out or _free_folder(Path("runs") / loaded.name), reporter)
    summary = json.loads((run.path / "summary.json").read_text())
    console.print(results_table(summary["evaluation"]))
    best = "last epoch kept" if summary["best_epoch"] is None else f"best epoch {summary['best_epoch'] + 1} of {summary['epochs']}"
    console.print(
        f"trained {summary['train_seconds']:.1f} s, {summary['grad_evals']:,} gradient evaluations "
        f"({summary['grad_evals_per_image']:.2f} per image and epoch), {best}",
        soft_wrap=True,
    )
    console.print(f"run folder {run.path}", soft_wrap=True)


def _free_folder(base: Path) -> Path:
    candidates = (base if i == 1 else base.with_name(f"{base.name}-{i}") for i in range(1, 100_000))
    return next(path for path in candidates if not path.exists())


@app.command("eval", epilog="Example: amata eval runs/mnist5k-amata --attacks clean,pgd-20,cw-pgd-20,autoattack --limit 100")
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="RUN|WEIGHTS", help="A run folder, or a weights file.")],
    attacks: Annotated[str | None, typer.Option(help="Comma-separated; the recipe's by default.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N test images.")] = None,
    recipe: Annotated[str | None, typer.Option(help="The recipe of a weights file that does not name its own.")] = None,
    set_: Set = [],  # noqa: B006
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Evaluate a trained model on the test set under one or more attacks."""
    from amata.console import ConsoleReporter, err, results_table
    from amata.console import out as console
    from amata.evaluation import parse_attack
    from amata.training.experiment import evaluate_recipe, load_trained

    names = [name.strip() for name in attacks.split(",")] if attacks else None
    for name in names or []:
        parse_attack(name)
    net, loaded, splits = load_trained(model, tuple(set_), recipe)
    with ConsoleReporter() as reporter:
        results = evaluate_recipe(net, loaded, splits.test, reporter, names, limit)
    for name, result in results.items():
        for warning in result.warnings:
            err.print(f"warning: {name}: {warning}", soft_wrap=True)
    plain = {name: result.to_dict() for name, result in results.items()}
    if json_:
        print(json.dumps(plain, indent=2))
    else:
        console.print(results_table(plain))


@recipes_app.callback(epilog="Example: amata recipes show cifar10-amata")
def list_recipes(ctx: typer.Context) -> None:
    """List the built-in recipes; `show NAME` prints one."""
    if ctx.invoked_subcommand is None:
        from amata.recipes import built_in

        recipes = built_in()
        width = max(map(len, recipes))
        for name, text in recipes.items():
            print(f"{name:{width}}  {text.splitlines()[0].lstrip('# ')}")


@recipes_app.command("show", epilog="Example: amata recipes show mnist5k-amata > mine.toml")
def show_recipe(name: Annotated[str, typer.Argument(help="A built-in recipe.")]) -> None:
    """Print a recipe, ready to be saved and changed."""
    from amata.recipes import built_in

    recipes = built_in()
    if name not in recipes:
        raise unknown("recipe", name, recipes)
    print(recipes[name], end="")


Root = Annotated[Path | None, typer.Option(help="Where data sets live; $AMATA_DATA or ~/.cache/amata by default.")]


@data_app.callback(epilog="Example: amata data fetch cifar10")
def list_data(ctx: typer.Context) -> None:
    """List the data sets; `fetch NAME` downloads one, `check NAME` reads one through."""
    if ctx.invoked_subcommand is None:
        from amata.data import DATASETS, data_root
        from amata.data.fetch import SOURCES

        for name, text in DATASETS.items():
            print(f"{name:10}  {text}{' (fetch)' if name in SOURCES else ''}")
        print(f"{'caltech256':10}  Caltech-256, to be read as a folder (fetch)")
        print(f"\ndata folder {data_root()}")


@data_app.command("fetch", epilog="Example: amata data fetch mnist --root ~/data")
def fetch_data(name: Annotated[str, typer.Argument(help="A data set with a public source.")], root: Root = None) -> None:
    """Download a data set: resumed where it stopped, verified, unpacked safely."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from amata.console import err
    from amata.data import data_root
    from amata.data.fetch import SOURCES, fetch

    if name not in SOURCES:
        raise unknown("data set to fetch:", name, SOURCES)
    folder = (root.expanduser() if root else data_root()) / name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        for remote in SOURCES[name]:
            task = progress.add_task(remote.name, total=None)
            path = fetch(remote, folder, lambda _, done, total, task=task: progress.update(task, completed=done, total=total))  # type: ignore[misc]
            print(f"{path} verified")


@data_app.command("check", epilog="Example: amata data check mnist5k")
def check_data(name: Annotated[str, typer.Argument(help="A data set.")], root: Root = None) -> None:
    """Read a data set through and say what is in it."""
    import torch

    from amata.data import Loader, load

    splits = load(name, root=root)
    for part, images in (("train", splits.train), ("test", splits.test)):
        shape, counts = None, torch.zeros(images.classes, dtype=torch.long)
        for batch in Loader(images, 512, torch.device("cpu")).epoch():
            shape = tuple(batch.x.shape[1:])
            counts += torch.bincount(batch.y, minlength=images.classes)
        print(
            f"{name} {part}: {len(images):,} images of {shape}, {images.classes} classes, {int(counts.min())} to {int(counts.max())} each"
        )


def version(show: bool) -> None:
    if show:
        from amata import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def amata(show: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False) -> None:
    """Adversarial training at a fraction of its usual cost."""


# Usage errors come from the click that typer brings along, in whichever place it keeps it.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """Run the command; every expected failure is one line on stderr and an exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
        if code == 130:  # typer turns Ctrl-C into a status
            raise KeyboardInterrupt
    except AmataError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except _UsageError as error:
        print(f"error: {' '.join(error.format_message().split())} See `amata --help`.", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        print("error: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
