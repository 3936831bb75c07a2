"""amata landscape: the loss landscape of the inner maximisation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import Json, Set, Trust, app, make_folder, whole_numbers
from amata.errors import check_installed


@app.command(epilog="Example: amata landscape runs/mine --epochs 1,4,8,10 --out runs/landscape")
def landscape(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[
        Path, typer.Option(help="A folder for landscape.html, landscape.json and the figures.")
    ],
    epochs: Annotated[
        str,
        typer.Option(
            help="Comma-separated, from 1; needs train.keep_epochs. Default: the best model."
        ),
    ] = "",
    image: Annotated[
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
    set_: Set = [],  # noqa: B006
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Draw the loss on a plane through an image, with the paths of attacks: the paper's landscape
    figure."""
    from amata.console import ConsoleReporter
    from amata.console import out as console
    from amata.report.landscape import (
        epoch_figures,
        epoch_title,
        landscape_figure,
        surface_figure,
        title,
    )
    from amata.report.page import Section, document, picture
    from amata.runs.files import write_atomic, write_json
    from amata.studies.landscape import run_landscapes

    check_installed("matplotlib", "drawing a landscape", "plots")
    figures = ("landscape.svg", "landscape.png", "landscape-3d.svg", "landscape-3d.png")
    make_folder(out, "landscape.html", "landscape.json", *figures)
    chosen, all_steps = whole_numbers(epochs, "--epochs"), whole_numbers(steps, "--steps")
    result, images = run_landscapes(
        run,
        chosen,
        overrides=tuple(set_),
        image=image,
        steps=all_steps,
        alpha=alpha,
        size=grid,
        seed=seed,
        trust=trust,
        note=ConsoleReporter().note,
    )
    landscape_figure(result, images, out / "landscape")
    surface_figure(result, out / "landscape-3d")
    write_json(out / "landscape.json", result)
    parts = "".join(map(picture, epoch_figures(result, images)))
    body = [f'<div class="figures">{parts}</div>', ABOUT]
    write_atomic(out / "landscape.html", document(title(result), [Section("", body)]).encode())
    if json_:
        print(json.dumps(result))
        return
    console.print(f"test image {result['image']}, label {result['label_name']}", soft_wrap=True)
    for found in result["landscapes"]:
        climbed = ", ".join(f"{c['name']} {c['loss'][-1]:.3g}" for c in found["courses"])
        console.print(
            f"{epoch_title(found)}: clean loss {found['clean_loss']:.3g}, predicted "
            f"{found['clean']['name']}; reached {climbed}; {found['courses'][0]['name']} predicted "
            f"{found['adversarial']['name']}",
            soft_wrap=True,
        )
        steep = found["steepness"]
        console.print(
            f"  mean over {steep['images']} test images: |dl/dx|_1 {steep['gradient_l1']:.3g}, "
            f"|dl/dx|_2 {steep['gradient_l2']:.3g}, curvature {steep['curvature']:.3g}",
            soft_wrap=True,
        )
    console.print(
        f"written {out / 'landscape.html'}, {out / 'landscape.svg'}, {out / 'landscape-3d.svg'}, "
        f"{out / 'landscape.json'}",
        soft_wrap=True,
    )


ABOUT = (
    '<p class="soft">The loss on a plane through the image. X is the principal direction of the '
    "first attack, Y a random direction of signs. The solid line is the edge of the ball in the "
    "plane. Paths are projected onto the plane, so they can cross it, but not the dotted line, the "
    "edge of the projected ball. Grey levels mean the same loss at every epoch. Then come the loss "
    "at each step with its final value, and the images with their predicted classes.</p>"
)
