"""What a recipe may do that the user did not write: run code, and read other folders.

A recipe is the user's own if they passed it: a file or a built-in name on the command line, or an
object in Python. A recipe that is read from a run folder or from the header of a weights file may
come from anybody. Its `model.name` may import code, and importing runs it. So such a recipe is used
only if the user says so (`--trust`, `trust=True`), or if it was trained on this machine before.

Trust is remembered at training, as one small file in `state_root()`. What it is bound to:

- It lies outside the run folder, so a folder cannot carry its own trust.
- Its name is the SHA-256 of everything that decides the run, with the network's name and arguments.
  A changed recipe is another recipe.
- The hash covers the file from which Python would import the package. A stranger can copy a recipe
  that we published, and add a module of the same name in the folder in which we then work: that
  module is another file, so it is not trusted. For the same reason the working directory is not on
  Python's path unless the trusted module is in it (`models.imported`).
- It does not cover the content of the code. Users edit their own networks between two commands, and
  whoever can write to that file can run code without us.

Delete the folder to forget everything.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from amata import models
from amata.errors import InputError, shorten
from amata.recipes import Recipe
from amata.runs.files import write_json

_given: set[str] = set()
"""The keys that this process trusts: the state folder may not be writable."""


def state_root() -> Path:
    """The folder of what is remembered: $AMATA_STATE, $XDG_STATE_HOME/amata or
    ~/.local/state/amata."""
    if chosen := os.environ.get("AMATA_STATE"):
        return Path(chosen)
    xdg = Path(os.environ.get("XDG_STATE_HOME") or "")
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "state") / "amata"


def remember(recipe: Recipe, note: Callable[[str], None]) -> None:
    """Trust the code that this recipe names from now on, on this machine."""
    if not models.names_code(recipe.model.name, recipe.model.args):
        return
    key = _key(recipe)
    _given.add(key)
    try:
        file = _file(key)
        if file.is_file():
            return
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"recipe": recipe.name, "code": recipe.model.name}
        write_json(file, {**about, "from": models.origin(recipe.model.name)})
    except (OSError, RuntimeError, InputError):
        note(
            f"cannot remember that {recipe.model.name} is trusted: set AMATA_STATE to a folder, or "
            "add --trust to evaluate or resume this run"
        )


def review(
    recipe: Recipe,
    source: Path,
    note: Callable[[str], None],
    *,
    stored: Recipe | None = None,
    given: Sequence[str] = (),
    trust: bool = False,
) -> None:
    """Refuse a recipe that was read from `source` if it names code that is not trusted, and report
    each folder and file that it names.

    `source` is the recipe.toml of a run folder, or a weights file. `given` are the user's overrides
    of single keys, and `stored` is the recipe without them.
    """
    keys = {override.partition("=")[0].strip() for override in given}
    name, args = recipe.model.name, recipe.model.args
    own = "model.name" in keys and (
        "model.args" in keys or all(f"model.args.{key}" in keys for key in args)
    )
    if models.names_code(name, args) and not (trust or own):
        _refuse_code(recipe, stored or recipe, source)
    for key, path, what in (
        ("data.root", recipe.data.root, "data"),
        ("eval.corruptions", recipe.eval.corruptions, "corrupted images"),
        ("model.weights", recipe.model.weights, "initial weights"),
    ):
        if path is not None and key not in keys:
            _report(key, path, what, source, note)
    if recipe.data.name.startswith("hf/") and "data.name" not in keys:
        note(f"loading {shorten(recipe.data.name, 80)} from the hub (data.name in {source})")


def _refuse_code(recipe: Recipe, stored: Recipe, source: Path) -> None:
    name, args = recipe.model.name, recipe.model.args
    places = models.origin(name)
    if places is None:
        raise InputError(
            f"model.name = {name!r} in {source} cannot be imported: no such module; run the "
            "command where its file is, or set PYTHONPATH to that folder"
        )
    key = _key(stored)
    try:
        known = key in _given or _file(key).is_file()
    except (OSError, RuntimeError):  # the state folder is not readable, or there is no HOME
        known = False
    if not known:
        call = f"model.name = {name!r}" + (
            f" with model.args = {shorten(args, 80)}" if args else ""
        )
        raise InputError(
            f"{source} would run code: {call}, from {', '.join(places) or 'Python itself'}; add "
            "--trust (in Python, trust=True) if you know where it comes from"
        )


def _report(key: str, path: str, what: str, source: Path, note: Callable[[str], None]) -> None:
    """Say what is read from outside the run folder."""
    try:
        place = Path(path).expanduser().resolve()
        run = key == "model.weights" and (place / "model.safetensors").is_file()
        table = key == "data.root" and place.suffix.lower() in (".csv", ".parquet")
        file = (table or key == "model.weights") and place.is_file()
        folder = key != "model.weights" and place.suffix.lower() != ".csv" and place.is_dir()
        fits = file or run or folder
        odd = place.exists() and not fits
    except (OSError, RuntimeError, ValueError):  # no such user, a null byte, a loop of links
        odd = True
    if odd:
        kind = "file" if key == "model.weights" else "folder"
        raise InputError(
            f"{key} = {shorten(path)!r} in {source} is not a {kind}; pass --set {key}=PATH"
        )
    inside = source.name == "recipe.toml" and place.is_relative_to(source.parent.resolve())
    if not inside:
        note(f"reading {what} from {place} ({key} in {source})")


def _key(recipe: Recipe) -> str:
    bound = {"recipe": recipe.digest(), "from": models.origin(recipe.model.name)}
    return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()


def _file(key: str) -> Path:
    return state_root() / "trusted" / f"{key}.json"
