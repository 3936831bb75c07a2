"""amata audit."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amata.cli.root import (
    Eps,
    Json,
    Set,
    Sha256,
    Trust,
    app,
    check_attacks,
    make_folder,
    short_forms,
)
from amata.errors import InputError, until_interrupted

if TYPE_CHECKING:
    from torch import nn

    from amata.data import ImageSet
    from amata.recipes import Recipe
    from amata.studies.audit import Audit


@app.command(epilog="Example: amata audit runs/mine --limit 200 --out runs/mine-audit")
def audit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|WEIGHTS|MODULE:CALLABLE",
            help="A run, a weights file or its URL, an exported folder, module:callable, or "
            "timm/NAME.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the page with images, and audit.json.")
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option(help="Comma-separated; default: clean,pgd-50-5,cw-pgd-50,autoattack."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Only the first N test images.")
    ] = 1000,
    eps: Eps = None,
    norm: Annotated[str | None, typer.Option(help="linf or l2; default: the recipe's.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A folder of images, or a data set; `amata data` lists them.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe of a weights file that has none.")
    ] = None,
    set_: Set = [],  # noqa: B006
    sha256: Sha256 = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Test any model: attacks, worst case, accuracy per class, warnings, and images."""
    from amata.console import ConsoleReporter
    from amata.runs.files import write_json
    from amata.studies.audit import audit as audit_model
    from amata.training.published import URL

    names = [name.strip() for name in attacks.split(",")] if attacks else None
    check_attacks(names or [])
    overrides = [*set_, *short_forms(threat_eps=eps, threat_norm=norm)]
    if out is not None:
        make_folder(out, "audit.html", "audit.json")
    with ConsoleReporter() as reporter:
        named = ":" in model or model.startswith("timm/")
        if named and not URL.match(model) and not Path(model).exists():
            folder = _folder(data)
            net, loaded, images = _foreign(model, data, overrides + folder)
            if folder:
                size = " × ".join(map(str, images.shape))
                reporter.note(f"the model gets images of {size}: data.resize, data.crop")
        else:
            from amata.training.loaded import load_trained

            if data is not None:
                overrides += [f"data.name={data}", *_folder(data)]
            net, loaded, splits = load_trained(
                model,
                tuple(overrides),
                recipe,
                to_test=True,
                sha256=sha256,
                trust=trust,
                note=reporter.note,
            )
            images = splits.test
        found, stopped = until_interrupted(
            lambda: audit_model(
                net,
                images,
                ball=loaded.ball,
                attacks=names,
                limit=limit,
                name=model,
                progress=reporter.evaluating,
            )
        )
    if out is not None:
        write_json(out / "audit.json", found.to_dict())
        found.save(out / "audit.html")
    if json_:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found, out)
    if stopped is not None:
        raise stopped


def _show(found: "Audit", out: Path | None) -> None:
    """The results, and where the page with images is."""
    from amata.console import audit_table
    from amata.console import out as console

    console.print(found.title, soft_wrap=True)
    console.print(audit_table({name: row.to_dict() for name, row in found.rows.items()}))
    for line in found.remarks:
        console.print(line, soft_wrap=True)
    if out is None:
        console.print("--out DIR writes a page with images", soft_wrap=True)
    else:
        console.print(f"page {out / 'audit.html'}", soft_wrap=True)


def _folder(data: str | None) -> list[str]:
    """The overrides for a folder of images in place of a data set's name."""
    from amata.data import DATASETS

    if data is None or data in DATASETS or not Path(data).is_dir():
        return []
    return ["data.name=folder", f"data.root={data}"]


def _foreign(
    name: str, data: str | None, overrides: list[str]
) -> tuple["nn.Module", "Recipe", "ImageSet"]:
    """A network that the user names, on the test images of a data set that they name."""
    from amata import recipes
    from amata.training.device import resolve_device
    from amata.training.setup import build_model, load_data

    if data is None:
        raise InputError(f"{name} has no recipe: add --data NAME; `amata data` lists the data sets")
    if not any(text.startswith("threat.eps=") for text in overrides):
        raise InputError(f"{name} has no recipe: add --eps, as in --eps 8/255")
    tables = {
        "data": {"name": data},
        "model": {"name": name},
        "threat": {"norm": "linf"},
        "method": {"name": "erm"},
        "schedule": {"name": "constant", "steps": 0, "step_size": 1.0},
        "optim": {"name": "sgd"},
        "train": {"epochs": 1},
    }
    chosen = recipes.parse(tables, name, overrides)
    pretrained = chosen.model.weights or chosen.model.args.get("pretrained")
    if name.startswith("timm/") and not pretrained:
        raise InputError(f"{name} has random weights: add --set model.weights=FILE")
    images = load_data(chosen).test
    # The user named this code.
    net = build_model(chosen, images, trust=True)
    return net.to(resolve_device(chosen.train.device)).eval(), chosen, images
