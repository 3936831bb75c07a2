"""amata bench: time the engines on this device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amata.cli.root import (
    Json,
    Set,
    app,
    complete_recipe,
    make_folder,
    whole_numbers,
)
from amata.errors import InputError, check_installed

if TYPE_CHECKING:
    import torch

    from amata.console.grid import Grid


@app.command(
    epilog="Example: amata bench cifar10-pgd10 --batch 128,512 --steps 10 --out runs/bench"
)
def bench(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE...",
            help="Recipes whose training step is timed.",
            autocompletion=complete_recipe,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    set_: Set = [],  # noqa: B006
    batch: Annotated[
        str, typer.Option(help="Comma-separated batch sizes; default: the recipe's.")
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            help="Comma-separated values of K; default: every K of the recipe's schedule."
        ),
    ] = "",
    variants: Annotated[
        str,
        typer.Option(
            help="Comma-separated: reference, amp, plain, fast, reference-train-bn, plain-bf16. "
            "Default: the first four, amp on GPUs only."
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Measuring time per variant and K.")
    ] = 2.0,
    wall: Annotated[
        bool,
        typer.Option(
            "--wall",
            help="Time whole trainings instead, with empty and with filled caches: where the "
            "seconds of `amata train` go.",
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Also time PGD training as others write it: with torchattacks, if it is "
            "installed, and in the style of fast_adversarial.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for bench.json and bench.svg, wall.json or data.json."),
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="Time the reading of image folders instead; no recipes.")
    ] = False,
    json_: Json = False,
) -> None:
    """Time training steps on random images: the usual implementation, the plain engine and the fast
    engine."""
    if data and (recipes or wall):
        raise InputError("--data times image folders alone: drop the recipes and --wall")
    if not recipes and not data:
        raise InputError("bench needs a recipe, as in amata bench cifar10-pgd10; or --data")
    if wall:
        if batch or steps or variants or device != "auto":
            raise InputError(
                "--wall times whole trainings as their recipes say: drop --batch, --steps, "
                "--variants and --device, or use --set"
            )
        _bench_wall(recipes, set_, out, json_)
        return
    from amata import recipes as recipe_files
    from amata.console import bench_table, err
    from amata.console import out as console
    from amata.report.figures import bench_figure
    from amata.runs.files import write_json
    from amata.studies.bench import bench as run_bench
    from amata.studies.bench_case import cases
    from amata.training.device import resolve_device

    where = resolve_device(device, "--device", "--device cpu")
    if data:
        _bench_data(where, seconds, out, json_)
        return
    sizes, controls = whole_numbers(batch, "--batch", 65_536), whole_numbers(steps, "--steps")
    timed = [
        case for name in recipes for case in cases(recipe_files.load(name, set_), sizes, controls)
    ]
    if out is not None:
        check_installed("matplotlib", "drawing bench.svg", "plots")
        make_folder(out, "bench.json", "bench.svg", "bench.png")
    note = lambda text: err.print(f"note: {text}", soft_wrap=True)  # noqa: E731

    def save(result: dict[str, Any]) -> None:
        if out is not None:
            write_json(out / "bench.json", result)

    # bf16 is up to a hundred times slower on some CPUs
    default = "reference,amp,plain,fast" if where.type == "cuda" else "reference,plain,fast"
    chosen = [v.strip() for v in (variants or default).split(",")]
    result = run_bench(
        timed, where, variants=chosen, peers=peers, seconds=seconds, note=note, save=save
    )
    if out is not None:
        bench_figure(result, out / "bench")
    if json_:
        print(json.dumps(result, indent=2))
    else:
        console.print(bench_table(result))


def _bench_wall(names: list[str], set_: list[str], out: Path | None, json_: bool) -> None:
    from amata import recipes as recipe_files
    from amata.console import err, wall_table
    from amata.studies.bench_wall import bench_wall

    loaded = [recipe_files.load(name, set_) for name in names]
    if out is not None:
        make_folder(out, "wall.json")
    result = bench_wall(names, loaded, set_, lambda text: err.say(f"note: {text}"))
    _show(result, wall_table, None if out is None else out / "wall.json", json_)


def _bench_data(device: "torch.device", seconds: float, out: Path | None, json_: bool) -> None:
    from amata.console import bench_data_table, err
    from amata.studies.bench_data import bench_data

    if out is not None:
        make_folder(out, "data.json")
    result = bench_data(device, seconds=seconds, note=lambda text: err.say(f"note: {text}"))
    _show(result, bench_data_table, None if out is None else out / "data.json", json_)


def _show(
    result: dict[str, Any],
    table: Callable[[dict[str, Any]], "Grid"],
    file: Path | None,
    json_: bool,
) -> None:
    from amata.console import out as console
    from amata.runs.files import write_json

    if file is not None:
        write_json(file, result)
    if json_:
        print(json.dumps(result, indent=2))
    else:
        console.print(table(result))
