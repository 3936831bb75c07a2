"""amata export: trained models for use without amata."""

from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import Set, Trust, app, make_folder
from amata.errors import check_installed


@app.command(epilog="Example: amata export runs/mine --to onnx --out exported")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    to: Annotated[str, typer.Option(help="robustbench, hf or onnx.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    name: Annotated[
        str | None, typer.Option(help="The model's name; default: the recipe's.")
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence", "--license", help="Licence of images of your own, for the model card."
        ),
    ] = None,
    weights_licence: Annotated[
        str | None,
        typer.Option(
            "--weights-licence",
            "--weights-license",
            help="Licence of the weights, as the Hugging Face Hub writes it: mit, cc-by-4.0.",
        ),
    ] = None,
    set_: Set = [],  # noqa: B006
    trust: Trust = False,
) -> None:
    """Export the best model of a run for RobustBench, for the Hugging Face Hub, or as ONNX, with a
    model card."""
    from amata.console import ConsoleReporter
    from amata.console import out as console
    from amata.export import export as write

    if to == "onnx":
        for package in ("onnxruntime", "onnxscript"):
            check_installed(package, "exporting to ONNX", "onnx")
    make_folder(out)
    write(
        run,
        to,
        out,
        name,
        licence=licence,
        weights_licence=weights_licence,
        overrides=tuple(set_),
        trust=trust,
        note=ConsoleReporter().note,
    )
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        console.print(f"written {path}", soft_wrap=True)
