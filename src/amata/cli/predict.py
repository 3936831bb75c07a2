"""amata predict: the classes of single images."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amata.cli.root import Eps, Json, Sha256, Trust, app, short_forms
from amata.errors import AmataError, InputError

if TYPE_CHECKING:
    from rich.table import Table

    from amata.evaluation.prediction import Prediction

BATCH, VALUES = 64, 1 << 23  # the most images, and values, that are predicted at once


@app.command(epilog="Example: amata predict runs/mine photo.jpg more_photos/ --robust")
def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|WEIGHTS",
            help="A run folder, a weights file or its URL, or an exported folder.",
        ),
    ],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.")
    ],
    robust: Annotated[
        bool, typer.Option("--robust", help="Attack each image and say whether its class changes.")
    ] = False,
    eps: Eps = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Print the N most probable classes.")
    ] = 1,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe of a weights file that has none.")
    ] = None,
    sha256: Sha256 = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Predict the class of images. No data set is needed. Images that cannot be read are named at
    the end, with exit status 1."""
    import torch

    from amata.console import ConsoleReporter
    from amata.console import out as console
    from amata.data import read_image
    from amata.data.listing import SUFFIXES
    from amata.evaluation.prediction import ATTACK, describe_attack
    from amata.evaluation.prediction import predict as predict_batch
    from amata.training import resolve_device
    from amata.training.loaded import load_network
    from amata.training.setup import framing_of

    if Path(model).suffix.lower() in SUFFIXES:
        raise InputError(f"{model} is an image; the run comes first: amata predict RUN IMAGE")
    if eps is not None and not robust:
        raise InputError("--eps is the radius of the attack: add --robust")
    overrides = tuple(short_forms(threat_eps=eps))
    files = _files(images)
    device = resolve_device("auto")
    rows: list[tuple[Path, Prediction]] = []
    bad: list[tuple[Path, InputError]] = []
    resized = 0
    with ConsoleReporter() as reporter:
        found = load_network(
            model, overrides, recipe, sha256=sha256, trust=trust, note=reporter.note
        )
        assert found.shape is not None  # it is known of every network that can be built
        net, framing = found.model.to(device), framing_of(found.recipe)
        ball = found.recipe.ball if robust else None
        batch = max(1, min(BATCH, VALUES // math.prod(found.shape)))
        for start in range(0, len(files), batch):
            reporter.evaluating(ATTACK if robust else "clean", start, len(files))
            read = []
            for file in files[start : start + batch]:
                try:
                    read.append((file, read_image(file, found.shape, framing)))
                except InputError as error:
                    bad.append((file, error))
            if not read:
                continue
            size = found.shape[:0:-1]
            resized += sum(framing is None and (p.width, p.height) != size for _, p in read)
            x = torch.stack([picture.x for _, picture in read]).to(device)
            predicted = predict_batch(net, x, found.names, top=top, ball=ball)
            rows += [(file, p) for (file, _), p in zip(read, predicted, strict=True)]
        if resized:
            _, height, width = found.shape
            text = f"{resized} of {len(rows)} images had another size and were resized to"
            reporter.note(f"{text} {width} x {height}")
    attack = describe_attack(found.recipe.ball) if robust else None
    if json_:
        known = {"attack": attack, "images": [_plain(*row) for row in rows]}
        print(json.dumps({**known, "unreadable": [str(file) for file, _ in bad]}, indent=2))
    elif rows:
        console.print(_table(rows, attack))
    if bad:
        names = f"{', '.join(str(file) for file, _ in bad)}: " if len(bad) > 1 else ""
        raise AmataError(f"{len(bad)} of {len(files)} images cannot be read: {names}{bad[0][1]}")


def _files(paths: list[Path]) -> list[Path]:
    """The image files among the paths and below the folders among them."""
    from amata.data.layout import images_below
    from amata.data.listing import SUFFIXES

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"no image or folder at {path}")
        found = [path]
        if path.is_dir():
            found, _ = images_below(path)
            if not found:
                raise InputError(f"no image in {path} (suffixes: {' '.join(sorted(SUFFIXES))})")
        files += found
    return files


def _plain(file: Path, p: "Prediction") -> dict[str, Any]:
    """A prediction as JSON."""
    top = [
        {"class": name, "probability": value}
        for name, value in zip(p.classes, p.probabilities, strict=True)
    ]
    under = {} if p.attacked is None else {"attacked": p.attacked, "robust": _robust(p)}
    return {"file": str(file), **top[0], "top": top, **under}


def _robust(p: "Prediction") -> bool:
    return p.attacked == p.classes[0]


def _table(rows: list[tuple[Path, "Prediction"]], attack: str | None) -> "Table":
    """One row per image, and one for each of its further classes."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("class", overflow="ellipsis", max_width=32)
    table.add_column("probability", justify="right", no_wrap=True)
    if attack is not None:
        table.add_column(f"under {attack}", overflow="ellipsis", max_width=32)
    for file, p in rows:
        under = [] if p.attacked is None else ["same" if _robust(p) else f"becomes {p.attacked}"]
        for number, (name, value) in enumerate(zip(p.classes, p.probabilities, strict=True)):
            first = number == 0
            table.add_row(str(file) if first else "", name, f"{value:.1%}", *(under * first))
    return table
