"""What a run made in Python records of its data and its model, and checks when it is resumed."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from torch import nn

from amata.data import Arrays, ImageSet, MapStyle
from amata.data.map_style import known_names
from amata.errors import InputError
from amata.recipes import Recipe
from amata.recipes.problems import first_problem
from amata.recipes.schema import Data, PythonData, PythonModel
from amata.runs import RunFolder
from amata.runs.code import code_of


def updated(table: Any, given: dict[str, Any]) -> Any:
    """The table with the arguments that were given, validated."""
    changed = {k: v for k, v in given.items() if v is not None}
    try:
        return type(table).model_validate({**table.model_dump(), **changed})
    except ValidationError as error:
        raise InputError(f"fit(): {first_problem(error, type(table))}") from None


def describe_data(images: Any, valid: Any, table: Data, batches: int | None) -> PythonData:
    """What the run records of its data."""
    keys = ("batch_size", "augment", "flip", "pad", "cutout", "drop_last", "limit")
    kept: dict[str, Any] = {key: getattr(table, key) for key in keys}
    own = updated(PythonData(), {"batches_per_epoch": batches}).batches_per_epoch
    kept["batches_per_epoch"] = own or getattr(table, "batches_per_epoch", None)
    if not isinstance(images, ImageSet):
        found = _stream_facts(images)
    else:
        found = {
            "count": len(images),
            "shape": list(images.shape),
            "classes": None if _unnamed(images) else images.classes,
            "sha256": images.sha256() if isinstance(images, Arrays) else None,
        }
    if isinstance(valid, ImageSet):
        found["valid"] = len(valid)
    elif valid is not None:
        found["valid"] = _stream_facts(valid).get("count", 0)
    if isinstance(valid, Arrays):
        found["valid_sha256"] = valid.sha256()
    return PythonData(**{**kept, **found})


def _stream_facts(batches: Any) -> dict[str, Any]:
    """What is known of an iterable of batches without reading it."""
    facts: dict[str, Any] = {"augment": "none", "flip": "random", "cutout": 0.0, "limit": None}
    if isinstance(size := getattr(batches, "batch_size", None), int):
        facts["batch_size"] = size
    if hasattr(dataset := getattr(batches, "dataset", None), "__len__"):
        facts["count"] = len(dataset)  # type: ignore[arg-type]
    return facts


def describe_model(model: nn.Module, first_layer: str | None) -> PythonModel:
    cls = type(model)
    return PythonModel(
        class_name=f"{cls.__module__}.{cls.__qualname__}",
        parameters=sum(p.numel() for p in model.parameters()),
        first_layer=first_layer,
    )


def describe_code(recipe: Recipe, model: nn.Module | None = None) -> dict[str, str]:
    """The code of the user's own classes and functions in a training."""
    modules = model.modules() if model is not None else ()
    return code_of([recipe.method.base, recipe.schedule, *modules])


def check_same(now: Recipe, recorded: Recipe, folder: RunFolder) -> None:
    """Refuse to resume with other data, another model or other settings than were recorded."""
    for key, known, given in changed_keys(now, recorded):
        # A finished run has nothing to validate.
        if not (folder.finished and key.partition(".")[2].startswith("valid")):
            raise InputError(
                f"{folder.path} was trained with {key} = {known!r}, not {given!r}; resume with the "
                "same, or start a new run"
            )


def changed_keys(now: Recipe, recorded: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """The keys that decide a run and differ, each with its recorded value and that of now."""
    for section, table in now.deciding().items():
        known = recorded.deciding().get(section, {})
        # Names first: "another method" says more than a key that the two methods do not share. And
        # how many images were held out says more than a hash of the others.
        first = "name", "class", "valid"
        for key in sorted(table.keys() | known.keys(), key=lambda k: (k not in first, k)):
            if table.get(key) != known.get(key):
                yield f"{section}.{key}", known.get(key), table.get(key)


def sizes_of(images: Any) -> dict[str, Any]:
    """Class names and shape, as far as they are known without reading all images."""
    if isinstance(images, ImageSet) and not _unnamed(images):
        return {"classes": list(images.names), "shape": list(images.shape)}
    shape = {"shape": list(images.shape)} if isinstance(images, ImageSet) else {}
    names = known_names(getattr(images, "dataset", None))
    return {**shape, "classes": list(names)} if names else shape


def _unnamed(images: ImageSet) -> bool:
    """Whether the classes are known only once all labels are read."""
    return isinstance(images, MapStyle) and known_names(images.dataset) is None
