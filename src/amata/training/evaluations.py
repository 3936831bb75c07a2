"""The evaluations of a run: kept in its folder, continued after an interruption, recognised."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from amata.checksums import CHECKSUM, of_text
from amata.data import Splits
from amata.recipes import Recipe
from amata.runs import RunFolder
from amata.runs.evaluations import StoredEvaluation, read_evaluations
from amata.tensors import read_metadata

UNRELATED = {"model": {"weights"}, "data": {"root", "workers", "in_memory"}}
"""Keys that change neither the network nor the test images."""


def stored_evaluation(
    path: Path,
    recipe: Recipe,
    splits: Splits,
    limit: int | None,
    device: torch.device,
    note: Callable[[str], None],
    forget: Sequence[str] = (),
) -> StoredEvaluation | None:
    """Where the evaluation of this run's best weights is kept. None for weights without a checksum,
    which another program wrote."""
    weights = read_metadata(path / "model.safetensors").get(CHECKSUM)
    if weights is None:
        return None
    on_gpu = device.type == "cuda"
    context = {
        "weights": weights,
        "data": recipe.data.name,
        "test_hash": splits.hashes["test_hash"],
        "test_pixels": splits.hashes["test_pixels"],
        "images": min(len(splits.test), limit or recipe.eval.limit or len(splits.test)),
        "batch_size": recipe.eval.batch_size,
        "seed": recipe.train.seed,
        "engine": ("plain" if recipe.train.engine == "plain" else "auto") if on_gpu else "plain",
        "precision": recipe.eval.precision if on_gpu else "fp32",
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
        "torch": torch.__version__,
        **_of_recipe(recipe),
    }
    return StoredEvaluation(path / "evaluations", context, device, note, forget=forget)


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    """What `--set` may change in an evaluation."""
    tables = {
        section: {k: v for k, v in recipe.chosen.get(section, {}).items() if k not in keys}
        for section, keys in UNRELATED.items()
    }
    return {
        "recipe": of_text(json.dumps(tables, sort_keys=True))[:16],
        "norm": recipe.ball.norm,
        "eps": recipe.ball.eps,
        "step_size": recipe.eval.step_size,
        "cw_c": recipe.eval.cw_c,
    }


def all_results(run: RunFolder, recipe: Recipe, summary: dict[str, Any]) -> dict[str, Any]:
    """The results in the summary, then those of later evaluations of the same weights, test images
    and ball, on more images or by other attacks. With another number of images than the summary's,
    an attack is called NAME@N."""
    found: dict[str, Any] = dict(summary["evaluation"])
    files = sorted(run.path.glob("evaluations/*.json"))
    if not files:
        return found
    expected, weights = _of_recipe(recipe), run.path / "model.safetensors"
    split = run.split()
    expected |= {key: split[key] for key in ("test_hash", "test_pixels") if key in split}
    if weights.is_file():
        expected["weights"] = read_metadata(weights).get(CHECKSUM)
    most = max((result["n"] for result in found.values()), default=None)
    records = [read_evaluations(file) for file in files]
    records.sort(key=lambda record: (record["context"]["images"], record["date"]), reverse=True)
    for record in records:
        if any(record["context"][key] != value for key, value in expected.items()):
            continue
        for name, result in record["results"].items():
            attack, n = name.partition("@")[0], result["n"]
            if any(a.partition("@")[0] == attack and r["n"] >= n for a, r in found.items()):
                continue
            whole = "@" in name or record["context"]["images"] == (most or n)
            found[name if whole else f"{name}@{n}"] = result
    return found
