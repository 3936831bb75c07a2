"""amata landscape: the loss landscape of the inner maximisation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import Json, Trust, app, check_installed, make_folder, whole_numbers


@app.command(epilog="Example: amata landscape runs/mine --epochs 1,4,8,10 --out runs/landscape")
def landscape(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option(help="A folder for landscape.json and the figures.")],
    epochs: Annotated[
        str,
        typer.Option(
            help="Comma-separated, from 1; needs train.keep_epochs. Default: the best model."
        ),
    ] = "",
    sample: Annotated[
        int | None,
        typer.Option(
            min=0, help="Index of the test image; default: the steepest of the first 100."
        ),
    ] = None,
    steps: Annotated[
        str,
        typer.Option(help="K of the attacks besides the run's own; the first defines the X axis."),
    ] = "40,2",
    alpha: Annotated[
        float | None,
        typer.Option(help="Step size of all attacks; default: tau / K, and the run's own."),
    ] = None,
    grid: Annotated[int, typer.Option(min=2, max=1000, help="Grid points per side.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the Rademacher direction.")] = 0,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Draw the loss on a plane through an image, with the paths of attacks: the paper's landscape
    figure."""
    from amata.console import ConsoleReporter
    from amata.console import out as console
    from amata.report.landscape import landscape_figure, surface_figure
    from amata.runs.files import write_json
    from amata.studies.landscape import run_landscapes

    check_installed("matplotlib", "drawing a landscape", "plots")
    figures = ("landscape.svg", "landscape.png", "landscape-3d.svg", "landscape-3d.png")
    make_folder(out, "landscape.json", *figures)
    chosen, all_steps = whole_numbers(epochs, "--epochs"), whole_numbers(steps, "--steps")
    result = run_landscapes(
        run,
        chosen,
        sample=sample,
        steps=all_steps,
        alpha=alpha,
        size=grid,
        seed=seed,
        trust=trust,
        note=ConsoleReporter().note,
    )
    landscape_figure(result, out / "landscape")
    surface_figure(result, out / "landscape-3d")
    write_json(out / "landscape.json", result)
    if json_:
        print(json.dumps(result))
        return
    console.print(f"test image {result['sample']}, label {result['label']}")
    for picture in result["landscapes"]:
        title = f"epoch {picture['epoch']}" if picture["epoch"] else "best model"
        climbed = ", ".join(f"{c['name']} {c['loss'][-1]:.3g}" for c in picture["courses"])
        console.print(
            f"{title}: clean loss {picture['clean_loss']:.3g}; reached {climbed}", soft_wrap=True
        )
    console.print(
        f"written {out / 'landscape.svg'}, {out / 'landscape-3d.svg'}, {out / 'landscape.json'}",
        soft_wrap=True,
    )
