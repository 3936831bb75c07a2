"""An experiment by recipe: data, model, training, and the final evaluation on the test set."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amata import data, models
from amata.attacks.checks import forward
from amata.data.corruptions import Corruptions, find_corruptions, open_corruptions
from amata.distributed import current, init_distributed, is_main, launched
from amata.errors import InputError, Interrupted, quoted, shorten
from amata.evaluation import Result, evaluate, grouped_warnings, parse_attack
from amata.evaluation.corruptions import evaluate_corruptions, is_attack
from amata.recipes import Recipe
from amata.recipes.schema import PythonData
from amata.reporter import Reporter
from amata.runs import RunFolder, resume_call
from amata.runs.evaluations import StoredEvaluation
from amata.runs.files import describe_weights
from amata.schedules import planned_controls
from amata.training.checks import check_consistent, check_divisible, check_equal_ranks
from amata.training.device import resolve_device
from amata.training.evaluations import stored_evaluation
from amata.training.loop import part_of, train_model
from amata.training.stored import Stored
from amata.training.trust import remember, review


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


def _framed(recipe: Recipe) -> bool:
    return data.find_dataset(recipe.data.name).framed


def framing_of(recipe: Recipe) -> data.Framing | None:
    """How images are resized and cropped; None for images that are used as they are."""
    c = recipe.data
    if isinstance(c, PythonData) or not _framed(recipe):
        return None
    if c.name == "folder":
        return data.Framing(c.resize or 256, c.crop or 224, c.random_scale)
    side = c.crop or c.resize
    if side is None and not c.random_scale:
        return None
    return data.Framing(c.resize or side or 256, side or 224, c.random_scale)


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
    c, channels = recipe.model, images.shape[0]
    model = build_network(recipe, channels, images.classes, trust=trust, weights=weights)
    if c.weights:
        try:
            replaced = models.load_weights(model, c.weights, c.new_head)
        except InputError as error:
            raise InputError(f"{error}{_other_network(recipe)}") from None
        if replaced:
            note(f"new head: {', '.join(replaced)}")
    x, _ = next(iter(images.read([torch.arange(min(2, len(images)))], torch.device("cpu"), None)))
    with torch.no_grad():
        out = forward(model.eval(), x)
    if not isinstance(out, torch.Tensor) or out.dim() != 2 or len(out) != len(x):
        kind = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(
            f"model {c.name} must give logits of shape (N, classes); for {len(x)} images it "
            f"gave {kind}"
        )
    if out.shape[1] != images.classes:
        raise InputError(
            f"model {c.name} has {out.shape[1]} outputs and the data {images.classes} classes; "
            "set model.args to match"
        )
    return model.train()


def train(recipe: Recipe, out: Path, reporter: Reporter | None = None) -> RunFolder:
    """Run a recipe into a new folder. Input errors are found before the folder is created. The
    recipe is the caller's own: the code that it names is run, and trusted from now on.

    Under torchrun every process calls this, and rank 0 writes. After a failure torchrun restarts
    them with the same command; they then resume an unfinished run of the same recipe.
    """
    recipe = _with_absolute_root(recipe)
    if launched() and (out / "recipe.toml").is_file():
        run, begun = RunFolder.open(out)
        if not run.finished and begun.fingerprint() == recipe.fingerprint():
            return _run(recipe, lambda: run, reporter or Reporter())
    if is_main():
        RunFolder.check_free(out)
    return _run(recipe, lambda: RunFolder.create(out, recipe), reporter or Reporter())


def _with_absolute_root(recipe: Recipe) -> Recipe:
    """The recipe with an absolute data.root: the run is used from other folders too."""
    if recipe.data.root is None:
        return recipe
    root = os.path.abspath(os.path.expanduser(recipe.data.root))
    return replace(recipe, data=recipe.data.model_copy(update={"root": root}))


def resume(
    path: Path,
    overrides: tuple[str, ...] = (),
    reporter: Reporter | None = None,
    *,
    trust: bool = False,
) -> RunFolder:
    """Resume an interrupted run from its newest whole checkpoint; a finished run is left alone.

    `trust` runs the code that the folder's recipe names, and remembers it.
    """
    run, recipe = RunFolder.open(path, overrides)
    if isinstance(recipe.data, PythonData):
        call = resume_call(path, recipe)
        raise InputError(f"{path} was trained in Python, on its own data and model: call {call}")
    reporter = reporter or Reporter()
    if run.finished:
        reporter.note(f"{path} is finished already")
        return run
    review(recipe, path / "recipe.toml", reporter.note, given=overrides, trust=trust)
    return _run(recipe, lambda: run, reporter)


def _run(recipe: Recipe, folder: Callable[[], RunFolder], reporter: Reporter) -> RunFolder:
    device = resolve_device(recipe.train.device)
    check_attacks(recipe)
    check_consistent(recipe, planned_controls(recipe.schedule, recipe.train.epochs))
    splits = load_data(recipe)
    if splits.skipped:
        files = "1 file" if splits.skipped == 1 else f"{splits.skipped:,} files"
        reporter.note(f"data.skip_bad: leaving out {files} that cannot be used")
    if not all(map(is_attack, recipe.eval.attacks)):
        _corruptions(recipe, splits.test)
    model = build_model(recipe, splits.train, trust=True, note=reporter.note)
    remember(recipe, reporter.note)
    with init_distributed(device, timedelta(minutes=recipe.train.timeout)) as ranks:
        check_equal_ranks(recipe, splits.hashes, ranks)
        check_divisible(recipe, ranks)
        run = ranks.broadcast(_prepared(folder, recipe, splits) if ranks.is_main else None)
        assert run is not None
        _train_and_evaluate(run, recipe, model, splits, reporter if ranks.is_main else Reporter())
    return run


def _prepared(folder: Callable[[], RunFolder], recipe: Recipe, splits: data.Splits) -> RunFolder:
    run = folder()
    run.record_split(recipe.train.seed, splits.record())
    return run


def _train_and_evaluate(
    run: RunFolder, recipe: Recipe, model: nn.Module, splits: data.Splits, reporter: Reporter
) -> None:
    call = f"`amata train --resume {quoted(run.path)}`"
    try:
        fitted = train_model(model, splits.train, splits.valid, recipe, run=run, reporter=reporter)
    except Interrupted:
        raise
    except KeyboardInterrupt:  # before the first batch, or twice
        raise Interrupted(f"interrupted; resume with {call}", signal.SIGINT) from None
    again = f"training is done and saved, {call} continues the evaluation"
    device = resolve_device(recipe.train.device)
    store = None
    if current().size == 1:  # several processes have no common state to continue from
        store = stored_evaluation(run.path, recipe, splits, None, device, reporter.note)
    try:
        results = evaluate_recipe(fitted.model, recipe, splits.test, reporter, store=store)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted in the final evaluation; {again}", signal.SIGINT) from None
    except InputError as error:  # such as a test image that cannot be read
        raise InputError(f"{error}; {again}") from None
    for text in grouped_warnings({name: r.warnings for name, r in results.items()}):
        reporter.note(text)
    if current().is_main:
        summary = fitted.summary(recipe, records_of(results))
        run.write_summary(summary)
        reporter.finish(summary)


def check_attacks(recipe: Recipe) -> None:
    """Refuse unknown attacks before the recipe trains."""
    for name in [recipe.train.valid_attack, *filter(is_attack, recipe.eval.attacks)]:
        parse_attack(name)


def _corruptions(recipe: Recipe, images: data.ImageSet) -> Corruptions:
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
    corruptions = _corruptions(recipe, images) if corrupted else None
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
    path: Path,
    overrides: tuple[str, ...] = (),
    recipe_name: str | None = None,
    *,
    to_test: bool = False,
    trust: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> tuple[nn.Module, Recipe, data.Splits]:
    """The model of a run folder (its best weights), a weights file or an exported folder, with its
    recipe and data.

    With `to_test`, the test images must be those that the run set aside, unless other data are
    named. `trust` runs the code that the recipe in the folder or file names. `note` receives the
    folder that it reads data from.
    """
    stored = Stored.find(path, overrides, recipe_name)
    call = f"amata.load({str(path)!r}, model=model)"
    stored.refuse_python(f"{call} is its network, for amata.evaluate and others")
    stored.check_weights()
    stored.review(note, trust=trust, reads_data=True)
    recipe = stored.recipe
    try:
        splits = load_data(recipe)
    except InputError as error:
        if stored.run is not None or recipe.data.root is not None or not _framed(recipe):
            raise
        raise InputError(f"{error} ({path} does not record it: --set data.root=FOLDER)") from None
    if (
        to_test
        and stored.run is not None
        and not any(o.startswith(("data.root=", "data.name=")) for o in overrides)
    ):
        stored.run.check_test(splits)
    _check_names(stored, splits.test.names)
    model = build_model(recipe, splits.train, trust=True, weights=stored.weights)
    models.load_weights(model, stored.weights)
    return model.to(resolve_device(recipe.train.device)).eval(), recipe, splits
