"""Export trained models for use without amata."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from amata.errors import InputError, unknown
from amata.export.hub import write_hub
from amata.export.onnx import write_onnx
from amata.export.robustbench import write_robustbench
from amata.export.trained import Trained
from amata.training.stored import Shape

WRITERS: dict[str, Callable[[Trained, Path], None]] = {
    "robustbench": write_robustbench,
    "hf": write_hub,
    "onnx": write_onnx,
}

__all__ = ["WRITERS", "Trained", "export"]


def export(
    run: str | Path,
    to: str,
    out: str | Path,
    name: str | None = None,
    *,
    model: nn.Module | None = None,
    shape: Shape | None = None,
    licence: str | None = None,
    weights_licence: str | None = None,
    overrides: tuple[str, ...] = (),
    trust: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Write the best model of a finished run to a new folder, in the format `to`.

    The data are not needed. A run that was made in Python needs its network as `model`, and if it
    was trained on a DataLoader the `shape` (C, H, W) of an image. `licence` is that of images of
    your own, in a few words; `weights_licence` is an identifier such as "mit". `overrides` are
    keys of the recipe, such as "data.root=FOLDER" for runs of versions that did not record classes.
    `trust` runs the code that the run's recipe names. `note` receives messages for the user.
    """
    run, out = Path(run), Path(out)
    if to not in WRITERS:
        raise unknown("--to", to, WRITERS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"output folder {out} exists and is not empty; choose another folder")
    trained = Trained.of(
        run,
        name,
        model,
        shape,
        licence=licence,
        weights_licence=weights_licence,
        overrides=overrides,
        trust=trust,
        note=note,
    )
    WRITERS[to](trained, out)
    return trained
