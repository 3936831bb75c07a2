"""Runs a study and stores its small files under results/paper.

python evidence/measure.py STUDY [WORK] [KEY=VALUE...]
    Trains and evaluates in WORK/STUDY (default runs/paper). Run it again to resume. With any
    KEY=VALUE other than data.root it is a different study, so nothing is stored.
python evidence/measure.py unpack PARQUET_DIR OUT
    Writes the image folders of Tiny-ImageNet, for `measure.py tiny-free WORK data.root=OUT`.

Data sets are read from $AMATA_DATA.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from amata import recipes
from definition import RESULTS, ROOT, Command, Jobs
from study import STUDIES

RUN_FILES = ("recipe.toml", "env.json", "split.json", "metrics.jsonl", "summary.json")
"""The files of a run that are stored. Weights are not."""
STEEPNESS = "steepness.json"
"""How steep the loss is after every epoch, where it was measured."""
PLAN = "plan.json"
"""What was expected of a run that was given a time."""
STORED = (
    "plan.json",
    "autoattack-*.json",
    "criterion-*.json",
    "landscape.json",
    "landscape/landscape.png",
    "criterion/*/*.criterion.json",
    *(f"runs/*/{file}" for file in RUN_FILES),
)


def measure(name: str, work: Path, stored: Path, overrides: Sequence[str] = ()) -> None:
    """Start or resume a study. Overrides other than data.root make it a different study, which is
    not stored."""
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
        missing = [file for file, _ in study.after if not (stored / f"{file}.json").is_file()]
        if not missing:
            store(stored, folder, replace=False)  # finished runs are not trained again
        elif (stored / "runs").is_dir():
            print(
                f"{missing[0]}.json is missing and needs weights, which are not stored: "
                f"runs that are not in {folder} are trained again"
            )
    if not study.timed:
        runs = {
            folder / "runs" / f"{path.stem}-seed{seed}": (path, seed)
            for path in paths
            for seed in range(study.seeds)
        }
        in_parallel([partial(train_or_resume, run, *of) for run, of in runs.items()])
    target = ("--target", str(study.target)) if study.target else ()
    carry_out(
        folder,
        None if other else stored,
        (*map(str, paths), "--seeds", str(study.seeds), *target),
        study.after,
    )


def in_parallel(jobs: Sequence[Callable[[], None]]) -> None:
    try:
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            for result in [pool.submit(job) for job in jobs]:
                result.result()
    except KeyboardInterrupt:
        sys.exit(130)  # the commands were interrupted too, and have saved


def train_or_resume(run: Path, recipe: Path, seed: int) -> None:
    if not (run / "recipe.toml").is_file():
        amata("train", recipe, "--set", f"train.seed={seed}", "--out", run)
    elif not (run / "summary.json").is_file():
        amata("train", "--resume", run)


def carry_out(folder: Path, stored: Path | None, compared: Command, after: Jobs) -> None:
    """Run `amata compare`, then the `after` commands in parallel, and store the small files."""

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
        in_parallel([partial(run, file, *command) for file, command in after])
    finally:
        if stored:
            store(folder, stored)


def store_run(run: Path, target: Path) -> None:
    """Copy the small files of a finished run."""
    target.mkdir(parents=True, exist_ok=True)
    for file in RUN_FILES:
        shutil.copy(run / file, target / file)
    for file in (STEEPNESS, PLAN):
        if (run / file).is_file():
            shutil.copy(run / file, target / file)


def store(folder: Path, target: Path, *, replace: bool = True) -> None:
    """Copy the small files of a study, of its runs only the finished ones. Without `replace`, copy
    only what the target lacks."""
    for pattern in STORED:
        for source in folder.glob(pattern):
            copy = target / source.relative_to(folder)
            unfinished = (
                source.parent.parent.name == "runs"
                and not (source.parent / "summary.json").is_file()
            )
            if unfinished or (copy.exists() and not replace):
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


def unpack(source: Path, target: Path) -> None:
    """Write image folders from train-*.parquet and valid-*.parquet (columns image, label)."""
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
    """Run an `amata` command. Returns its output if `capture` is set."""
    print(" ".join(("amata", *map(str, arguments))) + "\n", end="", flush=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "amata", *map(str, arguments)],
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    try:
        out, _ = child.communicate()
    except KeyboardInterrupt:
        child.wait()  # it was interrupted too, and saves before it ends
        sys.exit(130)
    if child.returncode:
        sys.exit(child.returncode)
    return out or ""


def main(name: str = "", *rest: str) -> None:
    if name == "unpack" and len(rest) == 2:
        unpack(*map(Path, rest))
    elif name in STUDIES:
        work, *overrides = rest or ("runs/paper",)
        measure(name, Path(work), RESULTS / name, overrides)
    elif name and not name.startswith("-"):
        sys.exit(f"error: unknown study {name!r}; choose from {', '.join(STUDIES)}")
    else:
        sys.exit(f"error: which study?\n\n{__doc__}")


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
