"""What differs between the runs of a comparison: recipe keys, devices, package versions, data."""

from collections.abc import Sequence
from typing import Any

from amata.errors import InputError
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.runs.code import different_code

NEUTRAL = frozenset(
    {
        "data.workers",
        "train.seed",
        "train.keep_epochs",
        "train.save_minutes",
        "train.tensorboard",
        "train.timeout",
    }
)
"""Keys that affect neither results nor speed."""

LOADING = frozenset(
    {
        "augment",
        "batch_size",
        "cutout",
        "drop_last",
        "flip",
        "in_memory",
        "pad",
        "random_scale",
        "workers",
    }
)
"""Keys of [data] that say how images are loaded, not which ones."""


def which_images(recipe: Recipe) -> dict[str, Any]:
    """The keys of [data] that decide which images a run uses."""
    return {key: value for key, value in recipe.tables["data"].items() if key not in LOADING}


def check_same_data(opened: Sequence[tuple[RunFolder, Recipe]]) -> None:
    """Refuse runs whose records of their data differ. Published results may have none."""
    records = [(run, {**recipe.tables["data"], **run.split()}) for run, recipe in opened]
    hashes = {
        "test_hash": "test images",
        "test_pixels": "pixels in their test images",
        "train_hash": "training images",
        "train_pixels": "pixels in their training images",
        "sha256": "training images",
        "valid_sha256": "validation images",
    }
    for key, what in hashes.items():
        known: dict[Any, RunFolder] = {}
        for run, record in records:
            if record.get(key) is not None:
                known.setdefault(record[key], run)
        if len(known) > 1:
            one, other, *_ = (run.path for run in known.values())
            raise InputError(
                f"{one} and {other} have different {what}, so they cannot be compared; report "
                "them separately"
            )


TESTED = ("name", "root", "resize", "crop", "test_share", "shape", "classes")
"""Keys of [data] that decide which test images a run has, and their form."""


def same_test_images(opened: Sequence[tuple[RunFolder, Recipe]]) -> bool:
    """Whether all runs have the same test images: by their records, else by their recipes."""
    known = [run.split().get("test_hash") for run, _ in opened]
    if all(known) and len(set(known)) == 1:
        return True
    keys = [[recipe.tables["data"].get(key) for key in TESTED] for _, recipe in opened]
    return all(key == keys[0] for key in keys)


def comparability_warnings(opened: Sequence[tuple[RunFolder, Recipe]]) -> list[str]:
    """Reasons why the runs are not directly comparable."""
    found = []
    environments = [env for run, _ in opened for env in run.environments()]
    kinds = {
        "device": "devices",
        "commit": "commits of amata",
        "packages": "package versions",
        "threads": "numbers of threads",
    }
    different = [
        name
        for key, name in kinds.items()
        if any(env.get(key) != environments[0].get(key) for env in environments)
    ]
    if different:
        found.append(
            f"the runs have different {' and '.join(different)}: compare gradient evaluations, not "
            "seconds"
        )
    code = [env.get("code", {}) for env in environments]
    found += [f"the runs have different code of {name}" for name in different_code(code)]
    first = opened[0][1]
    shared = {
        "threats, so their robust accuracies are not comparable": lambda r: r.tables["threat"],
        "evaluations": lambda r: r.tables["eval"],
        "validation, so curves and target are not comparable": lambda r: (
            r.train.valid_attack,
            r.train.valid_every,
        ),
    }
    images = [which_images(recipe) for _, recipe in opened]
    if any(own != images[0] for own in images):
        every = [{k: own[k] for k in own if own[k] is not None} for own in images]
        both = set.intersection(*map(set, every))
        told = any(own[k] != every[0][k] for own in every for k in both)
        found.append(
            "the runs have different training or test images"
            if told
            else "it is not known whether the runs have the same training and test images"
        )
    found += [
        f"the runs have different {what}"
        for what, part in shared.items()
        if any(part(recipe) != part(first) for _, recipe in opened)
    ]
    if len({recipe.train.seed for _, recipe in opened}) == 1:
        found.append(
            f"one seed{' each' if len(opened) > 1 else ''}: the intervals cover the choice of "
            "images, not the variation between training runs"
        )
    return found


def recipe_differences(by_name: dict[str, Recipe]) -> list[dict[str, Any]]:
    """The keys that differ between recipes, with each recipe's value."""
    found = []
    keys = dict.fromkeys(
        f"{section}.{key}"
        for recipe in by_name.values()
        for section, table in recipe.tables.items()
        for key in table
    )
    for key in keys:
        section, _, name = key.partition(".")
        values = [recipe.tables.get(section, {}).get(name) for recipe in by_name.values()]
        if key not in NEUTRAL and any(v != values[0] for v in values):
            found.append({"key": key, "values": dict(zip(by_name, values, strict=True))})
    return found
