"""The evaluation of a recipe on its test images. That of a run is kept in its folder, recognised,
and continued after an interruption."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata import data
from amata.checksums import CHECKSUM, of_text
from amata.data.corruptions import Corruptions, find_corruptions, open_corruptions
from amata.distributed import current
from amata.evaluation import Result, evaluate, parse_attack
from amata.evaluation.corruptions import evaluate_corruptions, is_attack
from amata.recipes import Recipe
from amata.reporter import Reporter
from amata.runs import RunFolder
from amata.runs.evaluations import StoredEvaluation, read_evaluations
from amata.tensors import read_metadata
from amata.training.validation import part_of

UNRELATED = {"model": {"weights", "new_head"}, "data": {"root", "workers", "in_memory"}}
"""Keys that change neither the network nor the test images."""


def check_attacks(recipe: Recipe) -> None:
    """Refuse unknown attacks before the recipe trains."""
    for name in [recipe.train.valid_attack, *filter(is_attack, recipe.eval.attacks)]:
        parse_attack(name)


def corruptions_of(recipe: Recipe, images: data.ImageSet) -> Corruptions:
    """The corruption set of the recipe's data, for images like these."""
    own = [Path(recipe.data.root).expanduser()] if recipe.data.root else []
    roots = [*own, data.data_root()]
    folder = find_corruptions(recipe.data.name, roots, recipe.eval.corruptions)
    return open_corruptions(folder, images.shape, images.classes)


def evaluate_recipe(
    model: nn.Module,
    recipe: Recipe,
    images: data.ImageSet,
    reporter: Reporter,
    attacks: list[str] | None = None,
    limit: int | None = None,
    store: StoredEvaluation | None = None,
) -> dict[str, Result]:
    """The recipe's evaluation on these images, on the device the model is on. What is in the
    `store` is not computed again."""
    c = recipe.eval
    limit = limit or c.limit
    names = attacks or c.attacks
    corrupted = [name for name in names if not is_attack(name)]
    corruptions = corruptions_of(recipe, images) if corrupted else None
    n = min(len(images), limit or len(images))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    loader, ranks = data.Loader(images.subset(torch.arange(n)), c.batch_size, device), current()
    if store is not None:
        store.announce(list(names))
    results: dict[str, Result] = {}
    if named := [name for name in names if is_attack(name)]:
        results = evaluate(
            model,
            loader.epoch(0, ranks.rank, ranks.size),
            ball=recipe.ball,
            attacks=named,
            step_size=c.step_size,
            cw_c=c.cw_c,
            seed=recipe.train.seed,
            limit=n,
            progress=reporter.evaluating,
            part=part_of(ranks),
            batch_size=c.batch_size,
            engine="plain" if recipe.train.engine == "plain" else "auto",
            precision=c.precision,
            store=store,
        )
    for name in corrupted:
        assert corruptions is not None
        results[name.strip()] = evaluate_corruptions(
            model,
            corruptions,
            name=name.strip(),
            batch_size=c.batch_size,
            limit=limit,
            progress=reporter.evaluating,
            part=part_of(ranks),
            precision=c.precision,
        )
    if store is not None:
        store.finish(records_of(results))
    return results


def records_of(results: dict[str, Result]) -> dict[str, dict[str, Any]]:
    """Results as a run folder keeps them: outcomes and labels tell the accuracy per class."""
    plain = {name: result.to_dict() for name, result in results.items()}
    return {
        name: {k: v for k, v in record.items() if k != "per_class"}
        for name, record in plain.items()
    }


def stored_evaluation(
    path: Path,
    recipe: Recipe,
    splits: data.Splits,
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
