"""amata recipes and amata data."""

from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import app
from amata.errors import unknown

recipes_app = typer.Typer(help="The built-in recipes.", invoke_without_command=True)
data_app = typer.Typer(help="Data sets: list, fetch, check.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")


@recipes_app.callback(epilog="Example: amata recipes show cifar10-amata")
def list_recipes(ctx: typer.Context) -> None:
    """List the built-in recipes; `show NAME` prints one, `keys` explains every key."""
    if ctx.invoked_subcommand is None:
        from amata.recipes import built_in

        recipes = built_in()
        width = max(map(len, recipes))
        for name, text in recipes.items():
            print(f"{name:{width}}  {text.splitlines()[0].lstrip('# ')}")


@recipes_app.command("show", epilog="Example: amata recipes show mnist5k-amata > mine.toml")
def show_recipe(name: Annotated[str, typer.Argument(help="A built-in recipe.")]) -> None:
    """Print a recipe with every key filled in, ready to save and edit. The file itself is shorter:
    it may extend another recipe and leave out defaults."""
    from itertools import takewhile

    from amata.recipes import built_in, load

    recipes = built_in()
    if name not in recipes:
        raise unknown("recipe", name, recipes)
    for line in takewhile(lambda line: line.startswith("#"), recipes[name].splitlines()):
        print(line)
    print(load(name).to_toml(), end="")


@recipes_app.command("keys", epilog="Example: amata recipes keys schedule")
def list_keys(
    table: Annotated[
        str | None, typer.Argument(help="A table, such as optim; all by default.")
    ] = None,
) -> None:
    """List every key of a recipe with its default, its values and its meaning."""
    from rich.table import Table

    from amata.console import out
    from amata.recipes.reference import sections

    every = sections()
    if table is not None and table not in {section.table for section in every}:
        raise unknown("table", table, dict.fromkeys(section.table for section in every))
    for section in every:
        if table in (None, section.table):
            out.print(section.title, style="bold")
            if section.text:
                out.print(section.text, style="dim")
            grid = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
            for key in section.keys:
                grid.add_row(
                    key.name,
                    "required" if key.required else key.default or "-",
                    key.values,
                    key.text,
                )
            out.print(grid)
            out.print()


Root = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets; by default $AMATA_DATA, or ~/.cache/amata."),
]


@data_app.callback(epilog="Example: amata data fetch cifar10")
def list_data(ctx: typer.Context) -> None:
    """List the data sets; `fetch NAME` downloads one, `check NAME` reads all of one."""
    if ctx.invoked_subcommand is None:
        from amata.console import out
        from amata.data import DATASETS, data_root

        width = max(map(len, DATASETS))
        for name, entry in DATASETS.items():
            print(f"{name:{width}}  {entry.about}{' (fetch)' if entry.source else ''}")
        print()
        out.print(f"data folder {data_root()}", soft_wrap=True)


@data_app.command("fetch", epilog="Example: amata data fetch mnist --root ~/data")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A data set marked (fetch) in `amata data`.")],
    root: Root = None,
) -> None:
    """Download a data set: resumable, verified, unpacked safely."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    from amata.console import err, out
    from amata.data import DATASETS, data_root
    from amata.data.fetch import fetch

    sources = {known: entry.source for known, entry in DATASETS.items() if entry.source}
    if name not in sources:
        raise unknown("data set to fetch:", name, sources)
    folder = (root.expanduser() if root else data_root()) / name
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        for remote in sources[name]:
            task = progress.add_task(remote.name, total=None)

            def update(_: str, done: int, total: int | None, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=total)

            path = fetch(remote, folder, update)
            out.print(f"{path} verified", soft_wrap=True)


@data_app.command("check", epilog="Example: amata data check mnist5k")
def check_data(name: Annotated[str, typer.Argument(help="A data set.")], root: Root = None) -> None:
    """Read a whole data set and count its images by class. Images above AMATA_MAX_PIXELS (100
    million) and files above AMATA_MAX_BYTES (2 GiB) are refused; set these variables to change it.
    """
    import torch

    from amata.data import DATASETS, Arrays, Folder, data_root, load
    from amata.data.corruptions import SEVERITIES, find_corruptions, open_corruptions

    if name in DATASETS and (original := DATASETS[name].corrupts):
        shape, classes = DATASETS[name].shape, DATASETS[name].classes
        place = find_corruptions(original, [root.expanduser() if root else data_root()])
        found = open_corruptions(place, shape, classes)
        print(
            f"{name}: {len(found):,} images of {shape}, {len(found.files)} corruptions of "
            f"{SEVERITIES} severities"
        )
        return
    splits = load(name, root=root)
    for part, images in (("train", splits.train), ("test", splits.test)):
        if isinstance(images, Folder):
            images.check()
            labels = images.labels
        else:
            assert isinstance(images, Arrays)
            labels = images.y
        x, _ = next(images.read([torch.arange(1)], torch.device("cpu"), None))
        counts = torch.bincount(labels, minlength=images.classes)
        print(
            f"{name} {part}: {len(images):,} images of {tuple(x.shape[1:])}, {images.classes} "
            f"classes, {int(counts.min())} to {int(counts.max())} each"
        )
