"""What a recipe trains with: its data and its network."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from amata import data, models
from amata.attacks.checks import forward
from amata.engine.cudnn import no_cudnn_benchmark
from amata.errors import InputError, shorten
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.runs.files import describe_weights


def load_data(recipe: Recipe) -> data.Splits:
    c = recipe.data
    if isinstance(c, PythonData):
        raise InputError(
            "this run was trained in Python, on its own data: amata.load(FOLDER, model=model) is "
            "its network"
        )
    return data.load(
        c.name,
        root=c.root,
        valid=c.valid,
        limit=c.limit,
        seed=recipe.train.seed,
        framing=framing_of(recipe),
        workers=c.workers,
        in_memory=c.in_memory,
        test_share=c.test_share,
        columns=data.Columns(c.image_column, c.label_column),
        skip_bad=c.skip_bad,
    )


def is_framed(recipe: Recipe) -> bool:
    """Whether the images of this data set may be resized and cropped."""
    return data.find_dataset(recipe.data.name).framed


def framing_of(recipe: Recipe) -> data.Framing | None:
    """How images are resized and cropped; None for images that are used as they are."""
    c = recipe.data
    if isinstance(c, PythonData) or not is_framed(recipe):
        return None
    given = {"resize": c.resize, "crop": c.crop}
    if c.name != "folder":
        if c.resize is None and c.crop is None and not c.random_scale:
            return None
        given = {"resize": c.resize or c.crop, "crop": c.crop or c.resize}
    known = {key: value for key, value in given.items() if value is not None}
    return data.Framing(**known, random_scale=c.random_scale)


def build_network(
    recipe: Recipe,
    channels: int,
    classes: int,
    *,
    trust: bool = False,
    weights: Path | None = None,
) -> nn.Module:
    """The recipe's network for images of so many channels. Code that the recipe names is run with
    `trust` only: the recipe is the user's own, or was reviewed. A network that the file `weights`
    is too small for is not built."""
    c = recipe.model
    return models.build(
        c.name,
        in_channels=channels,
        classes=classes,
        args=c.args,
        mean=c.mean,
        std=c.std,
        seed=recipe.train.seed,
        trust=trust,
        most=None if weights is None else weights.stat().st_size,
    )


def _other_network(recipe: Recipe) -> str:
    """A hint if `model.weights` records another network than the recipe's."""
    path = Path(recipe.model.weights or "").expanduser()
    file = path / "model.safetensors" if path.is_dir() else path
    if file.suffix != ".safetensors" or not file.is_file():
        return ""
    tables = describe_weights(file).get("tables")
    trained = tables.get("model") if isinstance(tables, dict) else None
    if not isinstance(trained, dict):
        return ""
    own = recipe.tables["model"]
    keys = [key for key in ("name", "args") if trained.get(key) != own[key]]
    values = " and ".join(f"model.{key}={trained.get(key)}" for key in keys)
    return f"; it was trained with {shorten(values)}: set the same" if keys else ""


def build_model(
    recipe: Recipe,
    images: data.ImageSet,
    *,
    trust: bool = False,
    weights: Path | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> nn.Module:
    """The recipe's network for these images, as `build_network` makes it, checked with a forward
    pass on two of them."""
    model = _with_weights(recipe, images.shape[0], images.classes, trust, weights, note)
    x, _ = next(iter(images.read([torch.arange(min(2, len(images)))], torch.device("cpu"), None)))
    return _checked(model, x, images.classes, recipe.model.name)


def build_model_for(
    recipe: Recipe,
    shape: tuple[int, int, int],
    classes: int,
    device: torch.device,
    note: Callable[[str], None],
) -> nn.Module:
    """The same as `build_model` for a caller's own recipe, before its images are there; on the
    device, because the data are being decoded by all cores."""
    model = _with_weights(recipe, shape[0], classes, True, None, note).to(device)
    return _checked(model, torch.zeros(2, *shape, device=device), classes, recipe.model.name)


def _with_weights(
    recipe: Recipe,
    channels: int,
    classes: int,
    trust: bool,
    weights: Path | None,
    note: Callable[[str], None],
) -> nn.Module:
    """The network, with the weights of `model.weights`."""
    c = recipe.model
    model = build_network(recipe, channels, classes, trust=trust, weights=weights)
    if c.weights:
        try:
            replaced = models.load_weights(model, c.weights, c.new_head)
        except InputError as error:
            raise InputError(f"{error}{_other_network(recipe)}") from None
        if replaced:
            note(f"new head: {', '.join(replaced)}")
    return model


def _checked(model: nn.Module, x: torch.Tensor, classes: int, name: str) -> nn.Module:
    """The model in train mode, if it gives logits of these images."""
    with torch.no_grad(), no_cudnn_benchmark():
        out = forward(model.eval(), x)
    if not isinstance(out, torch.Tensor) or out.dim() != 2 or len(out) != len(x):
        kind = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(
            f"model {name} must give logits of shape (N, classes); for {len(x)} images it "
            f"gave {kind}"
        )
    if out.shape[1] != classes:
        raise InputError(
            f"model {name} has {out.shape[1]} outputs and the data {classes} classes; "
            "set model.args to match"
        )
    return model.train()
