"""Trained networks: amata.load, ready for images; with the data of the run, to be tested."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from amata import data, models
from amata.errors import InputError, shorten
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.training.device import resolve_device
from amata.training.published import local_path
from amata.training.setup import build_model, build_network, is_framed, load_data
from amata.training.stored import Note, Shape, Stored


@dataclass(frozen=True)
class Loaded:
    """A trained network in eval mode, and what is known of the images that it takes."""

    model: nn.Module
    recipe: Recipe
    names: tuple[str, ...]
    """Of the classes; empty if a run made in Python did not record them."""
    shape: Shape | None
    """Channels, height and width of an image; None if a run made in Python did not record it."""


def load_network(
    path: str | Path,
    overrides: tuple[str, ...] = (),
    recipe: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    sha256: str | None = None,
    trust: bool = False,
    note: Note = lambda text: None,
) -> Loaded:
    """The network of a run folder, a weights file or its URL, or an exported folder, on the CPU.
    The data are read only if an earlier version recorded neither classes nor shape."""
    path = local_path(path, sha256)
    stored = Stored.find(path, overrides, recipe)
    names, shape = stored.names, stored.shape
    if model is None:
        stored.refuse_python(f"pass its network, as in amata.load({str(path)!r}, model=model)")
    stored.check_weights()
    if model is None:
        stored.review(note, trust=trust, reads_data=names is None or shape is None)
        if names is None or shape is None:
            names, shape = _sizes_of_data(stored)
        model = build_network(
            stored.recipe, shape[0], len(names), trust=True, weights=stored.weights
        )
    models.load_weights(model, stored.weights)
    return Loaded(model.eval(), stored.recipe, names or _numbered(stored.recipe), shape)


def _sizes_of_data(stored: Stored) -> tuple[tuple[str, ...], Shape]:
    try:
        images = load_data(stored.recipe).train
    except InputError as error:
        raise InputError(
            f"{stored.path} does not record its classes, and its data cannot be read: {error}"
        ) from None
    return images.names, images.shape


def _numbered(recipe: Recipe) -> tuple[str, ...]:
    count = recipe.data.classes if isinstance(recipe.data, PythonData) else None
    return tuple(map(str, range(count or 0)))


def load(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    recipe: str | Path | None = None,
    device: str | torch.device | None = None,
    sha256: str | None = None,
    trust: bool = False,
) -> nn.Module:
    """The trained network of a run folder, a weights file or its URL, or an exported folder, in
    eval mode, on the CPU if no `device` is given.

    Run folders give their best weights, unfinished ones the best so far. No data are needed. The
    network gets two attributes, unless it has its own of these names: `recipe`, and `classes`, the
    names of its classes.

    A run made by `amata.fit` needs its network as `model`, which is filled and returned. `recipe`
    is for weights files that name none. `sha256` is the checksum that a weights file must have; a
    URL needs it. What was downloaded is kept in the folder of data sets. `trust` runs the code that
    a recipe in the folder or file names; an exported architecture.py is never run.
    """
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise InputError(f"load(): path = {path!r} must be a run folder, a weights file or its URL")
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(f"load(): model = {type(model).__name__} must be an nn.Module")
    target = resolve_device(str(device or "cpu"), "device", "device='cpu'")
    loaded = load_network(path, (), recipe, model=model, sha256=sha256, trust=trust)
    net = loaded.model.to(target)
    for name, value in (("recipe", loaded.recipe), ("classes", loaded.names)):
        if not hasattr(net, name):
            setattr(net, name, value)
    return net


def _check_names(stored: Stored, names: tuple[str, ...]) -> None:
    """Refuse data with other classes than the network's, or in another order: its accuracy on them
    would mean nothing. Classes without names are numbered, and may be any."""
    known, numbers = stored.names, tuple(map(str, range(len(names))))
    if known is None or names == known or len(names) != len(known) or numbers in (names, known):
        return
    label = next(label for label, name in enumerate(names) if name != known[label])
    here, there = shorten(names[label], 60), shorten(known[label], 60)
    raise InputError(
        f"class {label} of the data is {here!r}, and {there!r} for the network of {stored.path}; "
        "rename the classes of the data, in the same order"
    )


def load_trained(
    path: str | Path,
    overrides: tuple[str, ...] = (),
    recipe_name: str | None = None,
    *,
    to_test: bool = False,
    sha256: str | None = None,
    trust: bool = False,
    note: Note = lambda text: None,
) -> tuple[nn.Module, Recipe, data.Splits]:
    """The model of a run folder (its best weights), a weights file or its URL, or an exported
    folder, with its recipe and data.

    With `to_test`, the test images must be those that the run set aside, unless other data are
    named. `trust` runs the code that the recipe in the folder or file names. `note` receives the
    folder that it reads data from.
    """
    path = local_path(path, sha256)
    stored = Stored.find(path, overrides, recipe_name)
    call = f"amata.load({str(path)!r}, model=model)"
    stored.refuse_python(f"{call} is its network, for amata.evaluate and others")
    stored.check_weights()
    stored.review(note, trust=trust, reads_data=True)
    recipe = stored.recipe
    try:
        splits = load_data(recipe)
    except InputError as error:
        if stored.run is not None or recipe.data.root is not None or not is_framed(recipe):
            raise
        raise InputError(
            f"{path} does not record where its images are: {error}; for amata audit --data FOLDER"
        ) from None
    if to_test and stored.run is not None:
        if not any(o.startswith(("data.root=", "data.name=")) for o in overrides):
            stored.run.check_test(splits)
        elif stored.run.split().get("test_hash") != splits.hashes["test_hash"]:
            note(
                "these are not the test images that the run set aside. If they come from a folder "
                "without a test part, it may have trained on some of them"
            )
    _check_names(stored, splits.test.names)
    model = build_model(recipe, splits.train, trust=True, weights=stored.weights)
    models.load_weights(model, stored.weights)
    return model.to(resolve_device(recipe.train.device)).eval(), recipe, splits
