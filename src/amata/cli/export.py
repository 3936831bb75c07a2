"""amata export: a trained model as a folder that loads elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import app


@app.command(epilog="Example: amata export runs/mine --to onnx --out exported")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")],
    to: Annotated[str, typer.Option(help="robustbench, hf or onnx.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    name: Annotated[
        str | None, typer.Option(help="What the model is called; the recipe's name by default.")
    ] = None,
) -> None:
    """Export the best model of a run for RobustBench, for a model hub, or as ONNX."""
    from amata.console import out as console
    from amata.export import export as write

    write(run, to, out, name)
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        console.print(f"written {path}", soft_wrap=True)
