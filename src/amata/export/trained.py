"""A finished run to export: its model, recipe and evaluation."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amata import models
from amata.data import Arrays, ImageSet
from amata.errors import InputError, shorten
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.runs import RunFolder
from amata.training.experiment import load_trained

NAME_BYTES = 200


@dataclass(frozen=True)
class Trained:
    name: str
    model: nn.Module
    recipe: Recipe
    evaluation: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    test: ImageSet
    pretrained: bool
    """Whether training started from given weights."""

    @classmethod
    def of(
        cls,
        path: Path,
        name: str | None = None,
        model: nn.Module | None = None,
        images: Tensor | None = None,
        *,
        trust: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ) -> "Trained":
        """The best model of a run folder; `model` and `images` are for runs made in Python."""
        run, begun = RunFolder.open(path)
        _check_name(name, begun.name, path)
        run.check_finished()
        summary = run.summary()
        test: ImageSet
        if isinstance(begun.data, PythonData):
            if model is None or images is None:
                call = f"amata.export.export({str(path)!r}, to, out, model=model, images=x)"
                raise InputError(f"{path} was trained in Python, with its own model: call {call}")
            models.load_weights(model, path / "model.safetensors")
            recipe, test = begun, Arrays(images, torch.zeros(len(images)))
        else:
            model, recipe, splits = load_trained(
                path, ("train.device=cpu",), trust=trust, note=note
            )
            test = splits.test
        return cls(
            name or begun.name,
            model,
            recipe,
            summary["evaluation"],
            summary,
            test,
            begun.model.weights is not None,
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        return {k: v.detach().cpu().contiguous() for k, v in self.model.state_dict().items()}

    @property
    def eps(self) -> str:
        """The radius as text, such as 8/255."""
        eps = self.recipe.ball.eps
        short = f"{eps:g}"
        return (
            short
            if float(short) == eps or round(eps * 255) / 255 != eps
            else f"{round(eps * 255)}/255"
        )

    def architecture(self, reading: str) -> str:
        """Python source that needs only torch: the model and a `load` function. `reading` is the
        expression that reads its weights."""
        c = self.recipe.model
        if c.name not in models.MODELS:
            raise InputError(
                f"model {c.name} is not built in, so its source cannot be exported; use --to onnx"
            )
        builder = models.MODELS[c.name]
        homes = [sys.modules[part.__module__] for part in (models.Normalize, builder)]
        sources = [inspect.getsource(home) for home in homes]
        lines = [
            line
            for source in sources
            for line in source.splitlines()
            if not line.startswith("from amata")
        ]
        arguments = {"in_channels": self.test.shape[0], "classes": self.test.classes, **c.args}
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return "\n".join(
            [
                f'"""{c.name}, trained by amata {version("amata")}. Needs torch and the '
                "weights in this folder.",
                "",
                "    from architecture import load",
                "    logits = load()(images)  # float images in [0, 1], of shape (N, C, H, W)",
                '"""',
                "",
                "from pathlib import Path",
                "",
                "InputError = ValueError",
                "",
                *lines,
                "",
                "",
                "def load(folder: str | None = None) -> nn.Module:",
                '    """The trained network in eval mode."""',
                "    here = Path(folder) if folder else Path(__file__).parent",
                f"    net = {builder.__name__}({given}, normalize=Normalize({c.mean!r}, "
                f"{c.std!r}))",
                f"    net.load_state_dict({reading})",
                "    return net.eval()",
                "",
            ]
        )

    def percent(self, attack: str) -> str | None:
        """The accuracy under an attack as RobustBench writes it, or None if it was not measured."""
        result = next(
            (
                r
                for name, r in self.evaluation.items()
                if name.partition("@")[0] == attack.partition("@")[0]
            ),
            None,
        )
        return f"{100 * result['accuracy']:.2f}" if result else None

    def strongest(self) -> str | None:
        """The attack inside the ball with the lowest accuracy."""
        bounded = (a for a, r in self.evaluation.items() if "eps" in r["params"])
        return min(bounded, key=lambda a: self.evaluation[a]["accuracy"], default=None)

    @property
    def warnings(self) -> list[str]:
        return [f"{attack}: {w}" for attack, r in self.evaluation.items() for w in r["warnings"]]


def _check_name(name: str | None, recipe: str, run: Path) -> None:
    """The name of an export becomes the name of a file. That of the recipe is the first line of
    recipe.toml, which anybody can write."""
    chosen = recipe if name is None else name
    if re.fullmatch(r"[\w.+-]+", chosen) and len(chosen.encode()) <= NAME_BYTES:
        return
    what, hint = (
        (f"the recipe's name {shorten(recipe, 60)!r} in {run / 'recipe.toml'}", "add --name: ")
        if name is None
        else (f"--name {shorten(name, 60)!r}", "")
    )
    raise InputError(
        f"{what} is used as a file name; {hint}use only letters, digits and . + - _, at most "
        f"{NAME_BYTES} bytes"
    )
