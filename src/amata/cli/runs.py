"""amata train and amata eval."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from amata.cli.root import (
    Engine,
    Epochs,
    Eps,
    Json,
    Limit,
    Log,
    Precision,
    Seed,
    Set,
    Sha256,
    Trust,
    app,
    check_attacks,
    complete_recipe,
    reporters,
    short_forms,
)
from amata.errors import InputError, Interrupted, until_interrupted
from amata.imports import is_import_path


@app.command(epilog="Example: amata train mnist5k-amata --epochs 5 --out runs/first")
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A built-in recipe, a TOML file, or module:name of a Recipe in Python.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the run; default: runs/RECIPE.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume an interrupted run.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Choose epochs and schedule to fill this time, as in 5m or 1h30m.",
        ),
    ] = None,
    epochs: Epochs = None,
    eps: Eps = None,
    seed: Seed = None,
    limit: Limit = None,
    engine: Engine = None,
    precision: Precision = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Use deterministic kernels only."),
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Image folders: skip files that cannot be read."),
    ] = False,
    log: Log = [],  # noqa: B006
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Train a model with a recipe, evaluate it, and write a run folder."""
    in_python = recipe is not None and is_import_path(recipe)
    if (recipe is None) == (resume is None) and not in_python:
        raise InputError("pass either a recipe or --resume RUN; `amata recipes` lists the recipes")
    if resume is not None and out is not None:
        raise InputError("--resume continues in its own folder; drop --out")
    for option, value in (("--within", within), ("--epochs", epochs)):
        if resume is not None and value is not None:
            raise InputError(f"--resume continues with the epochs of its run; drop {option}")
    set_ = [
        *set_,
        *short_forms(
            threat_eps=eps,
            train_seed=seed,
            data_limit=limit,
            data_skip_bad=skip_bad or None,
            train_engine=engine,
            train_precision=precision,
            train_deterministic=deterministic or None,
        ),
    ]
    if recipe is not None and not in_python:
        from amata.ahead import start_early

        start_early(recipe, set_, within, epochs)
    from amata import recipes as recipe_files
    from amata.console import out as console
    from amata.console import results_table, wall_line
    from amata.distributed import is_main, launched
    from amata.reporter import Reporter
    from amata.training.experiment import resume as resume_run
    from amata.training.experiment import train as train_recipe
    from amata.training.wall import WallClock, process_age
    from amata.training.within import read_within

    wall = WallClock(process_age())
    time = read_within(within, recipe_files.as_pairs(set_), epochs)
    if launched() and out is None and resume is None:
        raise InputError(
            "torchrun needs --out, so all processes and restarts use the same run folder"
        )
    ended = resume is not None and (resume / "summary.json").is_file()
    with reporters(log) if is_main() else Reporter() as reporter:
        if resume is not None:
            own = None if recipe is None else recipe_files.load(recipe)
            run = resume_run(resume, tuple(set_), reporter, own=own, trust=trust, wall=wall)
        else:
            assert recipe is not None
            loaded = recipe_files.load(recipe, set_, epochs=epochs)
            check_attacks([loaded.train.valid_attack, *loaded.eval.attacks])
            folder = out or _free_folder(Path("runs") / loaded.name)
            run = train_recipe(loaded, folder, reporter, wall=wall, within=time)
    if not is_main():
        return
    summary = run.summary()
    if json_:
        print(json.dumps({"run": str(run.path), **summary}, indent=2))
        return
    console.print(results_table(summary["evaluation"]))
    best = (
        "last epoch used"
        if summary["best_epoch"] is None
        else f"best epoch {summary['best_epoch'] + 1} of {summary['epochs']}"
    )
    console.say(
        f"trained {summary['train_seconds']:.1f} s, {summary['grad_evals']:,} gradient evaluations "
        f"({summary['grad_evals_per_image']:.2f} per image and epoch), {best}"
    )
    console.print(f"run folder {run.path}", soft_wrap=True)
    if "wall_seconds" in summary and not ended:  # a run of an earlier version has none
        since = "" if resume is None else "since it was resumed: "
        console.say(since + wall_line(summary["wall_seconds"]))


def _free_folder(base: Path) -> Path:
    candidates = (base if i == 1 else base.with_name(f"{base.name}-{i}") for i in range(1, 100_000))
    return next(path for path in candidates if not path.exists())


@app.command(
    "eval",
    epilog="Example: amata eval runs/mnist5k-amata --attacks clean,pgd-20,cw-pgd-20,autoattack "
    "--limit 100",
)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|WEIGHTS",
            help="A run folder, a weights file or its URL, or an exported folder.",
        ),
    ],
    attacks: Annotated[
        str | None, typer.Option(help="Comma-separated; default: the recipe's.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N test images.")
    ] = None,
    eps: Eps = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe of a weights file that has none.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Evaluate again what the run folder holds already.")
    ] = False,
    set_: Set = [],  # noqa: B006
    sha256: Sha256 = None,
    trust: Trust = False,
    json_: Json = False,
) -> None:
    """Evaluate a trained model on the test set under attacks.

    A run folder keeps the results in evaluations/. The same attacks are not evaluated twice, and
    an interrupted evaluation continues.
    """
    from amata.console import ConsoleReporter, err, results_table
    from amata.console import out as console
    from amata.evaluation import grouped_warnings
    from amata.training.device import resolve_device
    from amata.training.evaluations import evaluate_recipe, stored_evaluation
    from amata.training.loaded import load_trained

    names = [name.strip() for name in attacks.split(",")] if attacks else None
    check_attacks(names or [])
    overrides = (*set_, *([] if eps is None else [f"threat.eps={eps}"]))
    with ConsoleReporter() as reporter:
        net, loaded, splits = load_trained(
            model,
            overrides,
            recipe,
            to_test=True,
            sha256=sha256,
            trust=trust,
            note=reporter.note,
        )
        store, run = None, Path(os.path.expanduser(model))
        if (run / "recipe.toml").is_file():  # a run folder; nothing is added to an exported one
            forget = names or loaded.eval.attacks if again else ()
            device = resolve_device(loaded.train.device)
            store = stored_evaluation(run, loaded, splits, limit, device, reporter.note, forget)
        evaluated = partial(
            evaluate_recipe, net, loaded, splits.test, reporter, names, limit, store
        )
        if store is None:
            results, stopped = until_interrupted(evaluated)
        else:
            try:
                results, stopped = evaluated(), None
            except KeyboardInterrupt:
                kept = "interrupted; what is done is kept, repeat the command to continue"
                raise Interrupted(kept, signal.SIGINT) from None
    for text in grouped_warnings({name: r.warnings for name, r in results.items()}):
        err.say(f"warning: {text}")
    plain = {name: result.to_dict() for name, result in results.items()}
    if json_:
        print(json.dumps(plain, indent=2))
    else:
        console.print(results_table(plain))
    if stopped is not None:
        raise stopped
