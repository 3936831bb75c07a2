"""Studies: one comparison each, with what is measured on its runs afterwards, and the small files
of it that are kept."""

import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from amata import recipes

RUN_FILES = ("recipe.toml", "env.json", "metrics.jsonl", "summary.json")
"""What is kept of a run."""
KEPT = (
    "*.json",
    "figures/robust-time.svg",
    "landscape/*.png",
    "criterion/*/*.criterion.json",
    *(f"runs/*/{file}" for file in RUN_FILES),
)

Sets = tuple[str, ...]
Command = tuple[str, ...]
Jobs = tuple[tuple[str, Command], ...]
"""Commands, each with the name of the file that holds its output."""


@dataclass(frozen=True)
class Study:
    """One comparison, and what is measured on its runs afterwards."""

    recipes: dict[str, tuple[str, Sets]]
    attacks: tuple[str, ...]
    seeds: int = 1
    target: float | None = None
    timed: bool = True
    """Whether runs are made one after the other, so that their times mean something; or all at
    once."""
    after: Jobs = ()


def autoattack(*runs: str) -> Jobs:
    return tuple(
        (f"autoattack-{run}", ("eval", f"runs/{run}", "--attacks", "autoattack@1000", "--json"))
        for run in runs
    )


SHORT = ("train.epochs=30", "optim.milestones=[22,27]")
"""CIFAR-10: the paper's 100 epochs with drops of the rate at 75 and 90, in thirty."""
DIGITS = ("train.epochs=30", "optim.milestones=[27,29]")
"""MNIST: YOPO's 56 epochs with drops at 50 and 55, in thirty."""
TINY = (
    "data.resize=64",
    "data.crop=64",
    "data.in_memory=true",
    "data.augment=crop-flip",
    "data.batch_size=128",
    "eval.batch_size=1000",
)
"""Tiny-ImageNet's photographs have 64 pixels a side."""
FREE = ("model.name=resnet18", "data.random_scale=false", "data.valid=1000")
TWO_TO_FIVE = ("schedule.k_min=2", "schedule.k_max=5", "schedule.tau=0.4")
PAPERS_C = ("eval.cw_c=0.5",)
SMALL = ("model.name=preactresnet18", "data.batch_size=128", *PAPERS_C)
CIFAR10 = ("clean", "pgd-20", "cw-pgd-20", "cw-l2-100@1000")

FOLLOWED = (*DIGITS, "train.keep_epochs=true")
TABLE_1 = {
    "pgd40": ("mnist-pgd40", FOLLOWED),
    "pgd20": ("mnist-pgd40", (*FOLLOWED, "schedule.steps=20")),
    "pgd10": ("mnist-pgd40", (*FOLLOWED, "schedule.steps=10")),
    "amata-5-40": ("mnist-amata", FOLLOWED),
    "amata-10-40": ("mnist-amata", (*FOLLOWED, "schedule.k_min=10")),
}


def yopo(layer_one: str) -> dict[str, tuple[str, Sets]]:
    sets = ("train.epochs=20", "optim.milestones=[15,18,19]", f"method.layer_one={layer_one}")
    return {"yopo": ("mnist-yopo-5-10", sets), "amata-yopo": ("mnist-amata-yopo", sets)}


def criterion(title: str) -> Command:
    """C of one run. With the same G, data and seed for all, they may be held against each other."""
    out = f"criterion/{title}"
    return (
        "criterion",
        f"runs/{title}-seed0",
        "--k-max",
        "40",
        "--batches",
        "2",
        "--alphas",
        "4",
        "--json",
        "--out",
        out,
    )


EQUAL_TAU = "20/255"
RISING = [math.floor(1 + 4 * epoch / 30 + 0.5) for epoch in range(30)]
"""K of Linear 1 to 5 in each of thirty epochs: 88 steps an image in all, where a constant K = 3
takes 90."""


def stages(steps: Sequence[int]) -> Sets:
    """K of each epoch laid down by hand, with K alpha as in the other arms."""
    written = ", ".join(f"[{epoch}, {k}]" for epoch, k in enumerate(steps))
    return (
        *SHORT,
        "schedule.name=piecewise",
        f"schedule.stages=[{written}]",
        f"schedule.tau={EQUAL_TAU}",
    )


def constant(steps: int) -> tuple[str, Sets]:
    return (
        "cifar10-pgd10",
        (*SHORT, f"schedule.steps={steps}", f"schedule.step_size={20 / 255 / steps!r}"),
    )


def linear(k_min: int, k_max: int) -> tuple[str, Sets]:
    return (
        "cifar10-amata",
        (*SHORT, f"schedule.k_min={k_min}", f"schedule.k_max={k_max}", f"schedule.tau={EQUAL_TAU}"),
    )


STUDIES = {
    # Does annealing pay at equal cost? Stated before the first run: the arms are those below, seeds
    # 0 to 2, made seed by seed and reported as far as time reached. K alpha = 20/255 in all of
    # them, so that nothing but K over time differs. Nothing is tuned; the rate and its drops are
    # the paper's recipe for all. Compared: PGD-20 and CW-PGD-20 on all 10,000 test images, paired
    # by seed:
    #   linear 1 to 5 against constant 3, and against the same K in falling and in shuffled order
    #   (2.93 steps an epoch; the constant 3);
    #   linear 1 to 3 (1.97) against constant 2; constant 4 shows what one more step buys.
    # Three seeds tell differences of about 0.9 points, so "no difference" will mean "less than
    # that".
    "cifar10-equal-cost": Study(
        {
            "k2": constant(2),
            "k3": constant(3),
            "k4": constant(4),
            "linear-1-3": linear(1, 3),
            "linear-1-5": linear(1, 5),
            "falling-5-1": ("cifar10-amata", stages(RISING[::-1])),
            "shuffled-1-5": ("cifar10-amata", stages(random.Random(0).sample(RISING, len(RISING)))),
        },
        ("clean", "pgd-20", "cw-pgd-20"),
        seeds=3,
    ),
    "cifar10": Study(
        {"pgd10": ("cifar10-pgd10", SHORT), "amata": ("cifar10-amata", SHORT)},
        CIFAR10,
        seeds=3,
        target=0.45,
        after=autoattack("pgd10-seed2", "amata-seed2"),
    ),
    "cifar10-others": Study(
        {
            "erm": ("cifar10-erm", SHORT),
            "pgd2": ("cifar10-pgd2", SHORT),
            "fat": ("cifar10-fat", (*SHORT, *PAPERS_C, "method.tau=[[0,0],[15,1],[27,2]]")),
            "fosc": ("cifar10-dat", (*SHORT, *PAPERS_C, "method.dynamic_epochs=24")),
        },
        CIFAR10,
        after=autoattack("erm-seed0", "pgd2-seed0", "fat-seed0", "fosc-seed0"),
    ),
    "mnist": Study(TABLE_1, ("clean", "pgd-20", "pgd-40", "pgd-60", "cw-l2-100@1000")),
    "mnist-control": Study(
        TABLE_1,
        ("clean", "pgd-40"),
        timed=False,
        after=(
            *((f"criterion-{title}", criterion(title)) for title in TABLE_1),
            (
                "landscape",
                (
                    "landscape",
                    "runs/amata-5-40-seed0",
                    "--epochs",
                    "1,4,8,10",
                    "--json",
                    "--out",
                    "landscape",
                ),
            ),
        ),
    ),
    "mnist-yopo": Study(yopo("reference"), ("clean", "pgd-40"), target=0.94),
    "mnist-yopo-paper": Study(yopo("paper"), ("clean", "pgd-40"), target=0.94),
    "mnist-shapes": Study(
        {
            "linear": ("mnist-amata", (*DIGITS, *TWO_TO_FIVE)),
            **{
                f"exp-{eta}": (
                    "mnist-amata",
                    (*DIGITS, "schedule.name=exponential", f"schedule.eta={eta}", *TWO_TO_FIVE),
                )
                for eta in (0.1, 0.5, 1, 2, 5)
            },
        },
        ("clean", "pgd-40"),
        timed=False,
    ),
    "cifar10-fast": Study(
        {
            "fast": ("cifar10-fast", PAPERS_C),
            "amata-fast": ("cifar10-amata-fast", PAPERS_C),
            "amata-fast-skip": ("cifar10-amata-fast", (*PAPERS_C, "method.weak=skip")),
        },
        CIFAR10,
    ),
    "cifar10-atta": Study(
        {"atta": ("cifar10-atta", SMALL), "amata-atta": ("cifar10-amata-atta", SMALL)}, CIFAR10
    ),
    "tiny-free": Study(
        {
            "free": ("imagenet-free", (*TINY, *FREE)),
            "amata-free": ("imagenet-amata-free", (*TINY, *FREE)),
        },
        ("clean", "pgd-10", "pgd-20", "pgd-50"),
    ),
    "tiny-pgd": Study(
        {
            "pgd20": ("caltech256-pgd20", (*TINY, "optim.lr=0.05")),
            "amata-10-20": ("caltech256-amata", (*TINY, "optim.lr=0.05")),
        },
        ("clean", "pgd-5", "pgd-20", "pgd-100"),
    ),
}


def measure(name: str, work: Path, kept: Path, overrides: Sequence[str] = ()) -> None:
    """Make or go on with a study. With overrides, but for where data are, it is another one: none
    of its results are kept."""
    other = [o for o in overrides if not o.startswith("data.root=")]
    study, folder = STUDIES[name], work / (f"{name}-other" if other else name)
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    paths = [folder / "recipes" / f"{title}.toml" for title in study.recipes]
    attacks = ", ".join(f'"{a}"' for a in study.attacks)
    for path, (base, sets) in zip(paths, study.recipes.values(), strict=True):
        recipe = recipes.load(
            base, [*sets, f"eval.attacks=[{attacks}]", "train.tensorboard=false", *overrides]
        )
        path.write_text(recipe.to_toml())
    if not other:
        missing = [file for file, _ in study.after if not (kept / f"{file}.json").is_file()]
        if not missing:
            keep(kept, folder, anew=False)  # what is finished is not made again
        elif (kept / "runs").is_dir():
            print(
                f"{missing[0]}.json is missing, and weights are not kept: runs that are not in "
                f"{folder} are made again"
            )
    if not study.timed:
        runs = {
            folder / "runs" / f"{path.stem}-seed{seed}": (path, seed)
            for path in paths
            for seed in range(study.seeds)
        }
        side_by_side([partial(made, run, *of) for run, of in runs.items()])
    target = ("--target", str(study.target)) if study.target else ()
    carry_out(
        folder,
        None if other else kept,
        (*map(str, paths), "--seeds", str(study.seeds), *target),
        study.after,
    )


def side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    try:
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            for result in [pool.submit(job) for job in jobs]:
                result.result()
    except KeyboardInterrupt:
        sys.exit(130)  # the commands were interrupted too, and have saved


def made(run: Path, recipe: Path, seed: int) -> None:
    """A run of a recipe, begun or gone on with."""
    if not (run / "recipe.toml").is_file():
        amata("train", recipe, "--set", f"train.seed={seed}", "--out", run)
    elif not (run / "summary.json").is_file():
        amata("train", "--resume", run)


def carry_out(folder: Path, kept: Path | None, compared: Command, after: Jobs) -> None:
    """Compare, then run what comes after, side by side because no time is taken there, and keep
    what is small."""

    def run(file: str, verb: str, *arguments: str) -> None:
        output = folder / f"{file}.json"
        if not output.is_file():
            there = [
                str(folder / a) if a.startswith(("criterion", "landscape", "runs/")) else a
                for a in arguments
            ]
            output.write_text(amata(verb, *there, capture=True))

    try:
        amata("compare", *compared, "--out", str(folder))
        side_by_side([partial(run, file, *command) for file, command in after])
    finally:
        if kept:
            keep(folder, kept)


def keep_run(run: Path, target: Path) -> None:
    """Copy what is small of a finished run."""
    target.mkdir(parents=True, exist_ok=True)
    for file in RUN_FILES:
        shutil.copy(run / file, target / file)


def keep(folder: Path, target: Path, *, anew: bool = True) -> None:
    """Copy what is small and tells the result: of runs only those that are finished; without
    `anew`, only what the target lacks."""
    for pattern in KEPT:
        for source in folder.glob(pattern):
            kept = target / source.relative_to(folder)
            unfinished = (
                source.parent.parent.name == "runs"
                and not (source.parent / "summary.json").is_file()
            )
            if unfinished or (kept.exists() and not anew):
                continue
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, kept)


def unpack(source: Path, target: Path) -> None:
    """Image folders from parquet files of images and labels: train-*.parquet and
    valid-*.parquet."""
    import pyarrow.parquet as pq

    for part, name in (("train", "train"), ("valid", "val")):
        rows = [
            row
            for file in sorted(source.glob(f"{part}-*.parquet"))
            for row in pq.read_table(file).to_pylist()
        ]
        for number, row in enumerate(rows):
            path = target / name / f"{row['label']:03d}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(row["image"]["bytes"])


def amata(*arguments: str | Path, capture: bool = False) -> str:
    """Run the command; gives back what it printed, if that is captured."""
    print(" ".join(("amata", *map(str, arguments))) + "\n", end="", flush=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "amata", *map(str, arguments)],
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    try:
        out, _ = child.communicate()
    except KeyboardInterrupt:
        child.wait()  # it was interrupted too and is saving
        sys.exit(130)
    if child.returncode:
        sys.exit(child.returncode)
    return out or ""
