"""amata init: a recipe for a folder of images."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import app
from amata.errors import InputError, check_installed, quoted


@app.command("init", epilog="Example: amata init photos/ --out photos.toml")
def init(
    folder: Annotated[Path, typer.Argument(help="An image folder, or a csv of files and labels.")],
    out: Annotated[
        Path | None, typer.Option(help="The recipe to write; default: FOLDER.toml, here.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip files that cannot be read.")
    ] = False,
) -> None:
    """Look at a folder of images, write a recipe that fits it and this device, and say how long
    training will take. `amata data check` explains the layouts and the report."""
    check_installed("PIL", "data folder", "images")
    folder = Path(os.path.abspath(os.path.expanduser(folder)))
    if not folder.is_dir() and not (folder.suffix.lower() == ".csv" and folder.is_file()):
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; pass a folder with one folder per class, or a csv")
    if out is None:
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", folder.stem if folder.is_file() else folder.name)
        out = Path(f"{name.strip('-.') or 'images'}.toml")
    if out.suffix != ".toml":
        raise InputError(f"--out {out} must end with .toml")
    if os.path.lexists(out):
        raise InputError(
            f"{out} exists already: train with it (amata train {quoted(out)}), or choose another "
            "--out"
        )
    from amata import recipes
    from amata.cli.check import print_check, read_folder, refuse_unusable
    from amata.console import out as console
    from amata.studies.estimate import estimate, in_words
    from amata.studies.suggest import suggest
    from amata.training.device import resolve_device

    device = resolve_device("auto")
    check = read_folder(folder)
    print_check(check)
    refuse_unusable(check, skip_bad=skip_bad)
    suggestion = suggest(check, device, skip_bad=skip_bad)
    try:
        content = suggestion.to_toml(folder).encode()
        with out.open("xb") as file:
            file.write(content)
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "the path of the folder is not UTF-8"
        raise InputError(f"{out} cannot be written ({reason}); choose another --out") from None
    recipe = recipes.load(out)
    crop, network = suggestion.crop, suggestion.network
    console.print()
    console.print(
        f"wrote   {out}: {network.name} ({network.about}), {crop} x {crop} pixels, "
        f"batches of {suggestion.batch}, eps {suggestion.eps}",
        soft_wrap=True,
    )
    needed = in_words(estimate(recipe))
    console.print(f"time    {needed} for {recipe.train.epochs} epochs on {device}", soft_wrap=True)
    run = Path("runs") / recipe.name
    for title, command in (
        ("next", f"amata train {quoted(out)}"),
        ("", f"amata eval {quoted(run)}"),
        ("", f"amata predict {quoted(run)} IMAGE"),
    ):
        console.print(f"{title:8}{command}", soft_wrap=True)
