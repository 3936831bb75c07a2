"""A finished run to export: its model, recipe and evaluation."""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from amata import __version__, models
from amata.data import DATASETS
from amata.errors import InputError, shorten
from amata.formatting import to_fractions
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.runs import RunFolder
from amata.runs.records import Environment
from amata.training.evaluations import all_results
from amata.training.loaded import load_network
from amata.training.stored import Shape

NAME_BYTES = 200
LONGEST = 200
"""Characters of a licence."""


@dataclass(frozen=True)
class Trained:
    name: str
    model: nn.Module
    recipe: Recipe
    evaluation: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    classes: tuple[str, ...]
    """Their names."""
    shape: Shape
    """Channels, height and width of an image."""
    pretrained: bool
    """Whether training started from given weights."""
    split: dict[str, Any]
    """Which images the run used; may be empty."""
    environment: Environment | None
    """That of the last start of the run; None if it is not recorded."""
    licence: str | None
    """Of the data; None if it is not known."""
    weights_licence: str | None
    """An identifier of the Hugging Face Hub; None if nobody chose one."""

    @classmethod
    def of(
        cls,
        path: Path,
        name: str | None = None,
        model: nn.Module | None = None,
        shape: Shape | None = None,
        *,
        licence: str | None = None,
        weights_licence: str | None = None,
        overrides: tuple[str, ...] = (),
        trust: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ) -> "Trained":
        """The best model of a run folder. `model` is for runs made in Python, and `shape` for those
        that did not record it."""
        run, begun = RunFolder.open(path)
        _check_name(name, begun.name, path)
        terms = _licence(begun.data.name, licence)
        _check_identifier(weights_licence)
        run.check_finished()
        call = f"amata.export.export({str(path)!r}, to, out, model=model"
        if isinstance(begun.data, PythonData) and model is None:
            raise InputError(f"{path} was trained in Python, with its own model: call {call})")
        found = load_network(path, overrides, model=model, trust=trust, note=note)
        shape = shape or found.shape
        if shape is None:
            call += ", shape=(3, 32, 32)"
            raise InputError(f"{path} does not record the shape of its images: call {call})")
        summary = run.summary()
        # What is published names no folder of this machine.
        checks = found.recipe.eval.model_copy(update={"corruptions": None})
        return cls(
            name or begun.name,
            found.model,
            replace(found.recipe, eval=checks),
            all_results(run, begun, summary),
            summary,
            found.names,
            shape,
            begun.model.weights is not None,
            run.split(),
            run.environments()[-1] if (path / "env.json").exists() else None,
            terms,
            weights_licence,
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        return {k: v.detach().cpu().contiguous() for k, v in self.model.state_dict().items()}

    @property
    def eps(self) -> str:
        """The radius as text, such as 8/255."""
        eps = to_fractions(self.recipe.ball.eps)
        return eps if isinstance(eps, str) else f"{eps:g}"

    def architecture(self, reading: str) -> str:
        """Python source that needs only torch: the model and a `load` function. `reading` is the
        expression that reads its weights."""
        c = self.recipe.model
        found = models.built_in(c.name)
        if found is None:
            raise InputError(
                f"model {c.name} is not built in, so its source cannot be exported; use --to onnx"
            )
        builder, named = found
        homes = [sys.modules[part.__module__] for part in (models.Normalize, builder)]
        sources = [inspect.getsource(home) for home in homes]
        lines = [
            line
            for source in sources
            for line in source.splitlines()
            if not line.startswith("from amata")
        ]
        sizes = {"in_channels": self.shape[0], "classes": len(self.classes)}
        arguments = {**sizes, **named, **c.args}
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return "\n".join(
            [
                f'"""{c.name}, trained by amata {__version__}. Needs torch and the '
                "weights in this folder.",
                "",
                "    from architecture import load",
                "    logits = load()(images)  # float images in [0, 1], of shape (N, C, H, W)",
                "",
                "CLASSES has the names of the classes, in the order of the logits.",
                '"""',
                "",
                "from pathlib import Path",
                "",
                "InputError = ValueError",
                f"CLASSES = {self.classes!r}",
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

    def config(self) -> dict[str, Any]:
        """config.json: what the network is, and what `amata.load` builds it from."""
        c = self.recipe
        return {
            "name": self.name,
            "architecture": c.model.name,
            "args": c.model.args,
            "shape": list(self.shape),
            "id2label": {str(number): name for number, name in enumerate(self.classes)},
            "mean": c.model.mean,
            "std": c.model.std,
            "threat": {"norm": c.ball.norm, "eps": self.eps},
            "input": "float images in [0, 1], NCHW",
            "recipe": c.deciding(),
        }

    def percent(self, attack: str) -> str | None:
        """The accuracy under an attack as RobustBench writes it, on as many images as there are, or
        None if it was not measured."""
        base = attack.partition("@")[0]
        found = [r for name, r in self.evaluation.items() if name.partition("@")[0] == base]
        most = max(found, key=lambda r: r["n"], default=None)
        return f"{100 * most['accuracy']:.2f}" if most else None

    def strongest(self) -> str | None:
        """The attack inside the ball with the lowest accuracy."""
        bounded = (a for a, r in self.evaluation.items() if "eps" in r["params"])
        return min(bounded, key=lambda a: self.evaluation[a]["accuracy"], default=None)

    @property
    def warnings(self) -> list[str]:
        return [f"{attack}: {w}" for attack, r in self.evaluation.items() for w in r["warnings"]]


def sha256_of(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _licence(data: str, given: str | None) -> str | None:
    """The licence of the data: that of a data set we know, or the user's word for their own."""
    known = DATASETS[data].licence if data in DATASETS else None
    if given is None:
        return known
    if known is not None:
        raise InputError(f"--licence is for images of your own; that of {data} is: {known}")
    if not given.strip() or len(given) > LONGEST or not given.isprintable():
        raise InputError(f"--licence must be a text of 1 to {LONGEST} characters on one line")
    return given.strip()


def _check_identifier(licence: str | None) -> None:
    if licence is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,49}", licence):
        raise InputError(
            f"--weights-licence {shorten(licence, 60)!r} must be an identifier of the Hugging Face "
            "Hub, such as mit, apache-2.0 or cc-by-4.0"
        )


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
