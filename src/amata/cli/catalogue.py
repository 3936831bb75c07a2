"""amata recipes and amata data."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amata.cli.root import Epochs, Json, app, complete_recipe
from amata.errors import InputError, check_installed, nearest, printable, unknown

if TYPE_CHECKING:
    from amata.data import Columns

recipes_app = typer.Typer(help="The built-in recipes.", invoke_without_command=True)
data_app = typer.Typer(help="Data sets: list, fetch, check, cache.", invoke_without_command=True)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")


@recipes_app.callback(epilog="Example: amata recipes show cifar10-amata")
def list_recipes(ctx: typer.Context, json_: Json = False) -> None:
    """List the built-in recipes; `show NAME` prints one, `keys` explains every key."""
    if ctx.invoked_subcommand is None:
        from amata.console import listing
        from amata.recipes import built_in

        about = {name: text.splitlines()[0].lstrip("# ") for name, text in built_in().items()}
        if json_:
            print(json.dumps(about, indent=2))
        else:
            listing(about.items())


@recipes_app.command("show", epilog="Example: amata recipes show mnist5k-amata > mine.toml")
def show_recipe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A built-in recipe, a TOML file, or module:name of a Recipe in Python.",
            autocompletion=complete_recipe,
        ),
    ],
    epochs: Epochs = None,
) -> None:
    """Print a recipe with every key filled in, ready to save and edit. The file itself is shorter:
    it may extend another recipe and leave out defaults."""
    from itertools import takewhile

    from amata.imports import is_import_path
    from amata.recipes import built_in, load
    from amata.recipes.files import read_text

    full = load(name, epochs=epochs).to_toml()
    in_python = is_import_path(name)
    text = built_in().get(name) or ("" if in_python else read_text(Path(name).expanduser()))
    for line in takewhile(lambda line: line.startswith("#"), text.splitlines()):
        print(printable(line))
    print(full, end="")


@recipes_app.command("keys", epilog="Example: amata recipes keys schedule")
def list_keys(
    table: Annotated[
        str | None, typer.Argument(help="A table, such as optim; all by default.")
    ] = None,
) -> None:
    """List every key of a recipe with its default, its values and its meaning."""
    from amata.console import keys_table, out
    from amata.recipes.reference import sections

    every = sections()
    if table is not None and table not in {section.table for section in every}:
        raise unknown("table", table, dict.fromkeys(section.table for section in every))
    for section in every:
        if table in (None, section.table):
            out.print(section.title, style="bold")
            if section.text:
                out.print(section.text, style="dim")
            out.print(
                keys_table(
                    (k.name, "required" if k.required else k.default or "-", k.values, k.text)
                    for k in section.keys
                )
            )
            out.print()


Root = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets; by default $AMATA_DATA, or ~/.cache/amata."),
]


@data_app.callback(epilog="Example: amata data fetch cifar10")
def list_data(ctx: typer.Context, json_: Json = False) -> None:
    """List the data sets; `fetch NAME` downloads one, `check NAME` reads all of one, `cache`
    lists what is kept decoded."""
    if ctx.invoked_subcommand is None:
        from amata.console import listing, out
        from amata.data import DATASETS, data_root

        if json_:
            sets = {
                name: {
                    "about": entry.about,
                    "shape": entry.shape,
                    "classes": entry.classes,
                    "images": entry.images,
                    "fetch": bool(entry.source),
                    "licence": entry.licence,
                }
                for name, entry in DATASETS.items()
            }
            print(json.dumps({"folder": str(data_root()), "sets": sets}, indent=2))
            return
        listing(
            (name, f"{entry.about}{' (fetch)' if entry.source else ''}")
            for name, entry in DATASETS.items()
        )
        print()
        out.print(f"data folder {data_root()}", soft_wrap=True)


@data_app.command("fetch", epilog="Example: amata data fetch mnist --root ~/data")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A data set marked (fetch) in `amata data`.")],
    root: Root = None,
) -> None:
    """Download a data set: resumable, verified, unpacked safely."""
    from amata.console import downloading, out
    from amata.data import DATASETS, data_root
    from amata.data.fetch import fetch

    sources = {known: entry.source for known, entry in DATASETS.items() if entry.source}
    if name not in sources:
        raise unknown("data set to fetch:", name, sources)
    folder = (root.expanduser() if root else data_root()) / name
    with downloading() as progress:
        for remote in sources[name]:
            path = fetch(remote, folder, progress)
            out.print(f"{path} verified", soft_wrap=True)


@data_app.command("cache", epilog="Example: amata data cache --clear")
def data_cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete all entries.")] = False,
    json_: Json = False,
) -> None:
    """List the decoded images that are kept on disk, or delete them. They are in $AMATA_CACHE,
    $XDG_CACHE_HOME/amata/decoded or ~/.cache/amata/decoded; AMATA_CACHE=off keeps none."""
    from amata.console import listing, out
    from amata.data import cache

    found = cache.clear() if clear else cache.entries()
    total, folder = sum(entry.size for entry in found), cache.cache_root() or "off"
    if json_:
        rows = [{"path": str(e.path), "bytes": e.size, "source": e.about} for e in found]
        about = {"folder": str(folder), "bytes": total, "deleted": clear, "entries": rows}
        print(json.dumps(about, indent=2))
        return
    listing((f"{entry.size / 1e6:,.1f} MB", entry.about) for entry in found)
    done = "deleted from" if clear else "in"
    out.print(f"{len(found)} entries, {total / 1e6:,.1f} MB {done} {folder}", soft_wrap=True)


@data_app.command("check", epilog="Example: amata data check photos/")
def check_data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|NAME", help="An image folder, a csv, a parquet, or a data set."
        ),
    ],
    root: Root = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Folders: accept files that cannot be used.")
    ] = False,
    image_column: Annotated[
        str | None, typer.Option(help="parquet and hf/NAME: the column of images.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="parquet and hf/NAME: the column of labels.")
    ] = None,
    json_: Json = False,
) -> None:
    """Read every image of a folder or a data set, and report what is there. A folder: layout,
    images per class, sizes, copies, and every file that cannot be used. Images above
    AMATA_MAX_PIXELS (100 million) and files above AMATA_MAX_BYTES (2 GiB) are refused; set these
    variables to change it."""
    from amata.cli.check import looks_like_folder, print_check, read_folder, refuse_unusable
    from amata.data import DATASETS, Columns, data_root
    from amata.data.hub import PREFIX

    path = Path(os.path.expanduser(name))
    if name not in DATASETS and (path.suffix == ".parquet" or any(path.glob("*.parquet"))):
        name, root = "parquet", path
    known = name in DATASETS or (name.startswith(PREFIX) and not path.is_dir())
    if name == "folder" or (not known and looks_like_folder(name)):
        folder = (root or data_root()) if name == "folder" else path
        check_installed("PIL", "data folder", "images")
        check = read_folder(Path(os.path.expanduser(folder)))
        if json_:
            print(json.dumps(check.to_dict(), indent=2))
        else:
            print_check(check)
        refuse_unusable(check, skip_bad=skip_bad)
        return
    if not known:
        hint = nearest(name, DATASETS)
        raise InputError(f"no folder {name}, and no data set of that name; {hint}")
    _check_set(name, root, Columns(image_column, label_column), json_)


def _check_set(name: str, root: Path | None, columns: "Columns", json_: bool) -> None:
    """Count the images of a data set by class."""
    import torch

    from amata.console import err
    from amata.data import Arrays, Framing, data_root, find_dataset, load
    from amata.data.corruptions import SEVERITIES, find_corruptions, open_corruptions
    from amata.data.pixels import OtherSize

    entry = find_dataset(name)
    if original := entry.corrupts:
        shape, classes = entry.shape, entry.classes
        place = find_corruptions(original, [root.expanduser() if root else data_root()])
        stored = open_corruptions(place, shape, classes)
        if json_:
            about = {"images": len(stored), "shape": shape, "severities": SEVERITIES}
            print(json.dumps({"name": name, **about, "corruptions": list(stored.files)}, indent=2))
        else:
            print(
                f"{name}: {len(stored):,} images of {shape}, {len(stored.files)} corruptions of "
                f"{SEVERITIES} severities"
            )
        return
    found: dict[str, Any] = {}
    try:
        splits = load(name, root=root, columns=columns)
    except OtherSize as error:
        if not entry.framed:
            raise
        err.say(f"note: {error}; here all are read as 224 x 224 pixels")
        splits = load(name, root=root, columns=columns, framing=Framing())
    for part, images in (("train", splits.train), ("test", splits.test)):
        assert isinstance(images, Arrays)
        counts = torch.bincount(images.y, minlength=images.classes)
        found[part] = {
            "images": len(images),
            "shape": images.shape,
            "classes": dict(zip(images.names, counts.tolist(), strict=True)),
        }
        if not json_:
            print(
                f"{name} {part}: {len(images):,} images of {images.shape}, {images.classes} "
                f"classes, {int(counts.min())} to {int(counts.max())} each"
            )
    if json_:
        print(json.dumps({"name": name, **found}, indent=2))
