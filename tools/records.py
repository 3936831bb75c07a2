"""The speed record for robust CIFAR-10.

python tools/records.py explore [SECONDS]     tries what is listed in TRIALS and not yet in records/tried.jsonl, for some seconds
python tools/records.py measure NAME [WORK]   trains records/NAME.toml with three seeds into WORK (runs/records) and keeps the small files
python tools/records.py                       rewrites the tables of records/README.md (--check only compares)

CIFAR-10 is looked for in $AMATA_DATA.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page import rewrite
from paper import markdown, mean
from study import amata, keep

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "records"
TRIED = RECORDS / "tried.jsonl"
SEEDS = 3

BASE = (
    "data.batch_size=512",
    "data.drop_last=true",
    "data.valid=5000",
    "optim.rate=one-cycle",
    "optim.lr=0.4",
    "optim.peak=0.3",
    "optim.ema=0.998",
    "train.tensorboard=false",
    "train.valid_attack=pgd-20",
    "train.guard=ignore",
    'eval.attacks=["clean"]',
)
"""What all trials have in common. They are judged on held-out training images; test images choose nothing."""


def linear(epochs: int, k_min: int, k_max: int, tau: int, *more: str) -> tuple[str, ...]:
    return (f"train.epochs={epochs}", f"schedule.k_min={k_min}", f"schedule.k_max={k_max}", f"schedule.tau={tau}/255", *more)


TRIALS = {
    "1-4": linear(21, 1, 4, 12),
    "2-4": linear(18, 2, 4, 14),
    "1-2": linear(28, 1, 2, 10),
    "1-4, smooth labels": linear(21, 1, 4, 12, "optim.label_smoothing=0.1"),
    "2-7, long": linear(26, 2, 7, 20),
    "1-4, batch 256": linear(19, 1, 4, 12, "data.batch_size=256", "optim.lr=0.3", "optim.ema=0.999"),
    "1-4, ema 0.995": linear(21, 1, 4, 12, "optim.ema=0.995"),
    "1-4, lr 0.8": linear(21, 1, 4, 12, "optim.lr=0.8"),
    "2-10, long": linear(22, 2, 10, 20),
    "2-7, long, smooth labels": linear(26, 2, 7, 20, "optim.label_smoothing=0.1"),
}
"""The first ones take about 27 s on an H200, so that a training on all images stays below 30; long ones 45 s, for AutoAttack."""


def explore(seconds: float) -> None:
    from amata import recipes
    from amata.console import ConsoleReporter
    from amata.training.experiment import train

    started = time.monotonic()
    for name, sets in TRIALS.items():
        if name in {row["trial"] for row in tried()}:
            continue
        if time.monotonic() - started > seconds:
            print(f"time is up before {name}")
            return
        with tempfile.TemporaryDirectory() as folder, ConsoleReporter() as reporter:
            recipe = recipes.load("cifar10-amata", [*BASE, *sets])
            recipe = recipes.load("cifar10-amata", [*BASE, *sets, f"train.valid_every={recipe.train.epochs}"])
            last = train(recipe, Path(folder) / "run", reporter).read_rows()[-1]
        row = {"trial": name, "set": sets, **last["valid"], "train_seconds": last["train_seconds"]}
        with TRIED.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


def tried() -> list[dict[str, Any]]:
    return [json.loads(line) for line in TRIED.read_text().splitlines()] if TRIED.is_file() else []


def measure(name: str, work: Path, overrides: Sequence[str]) -> None:
    sets = [part for override in overrides for part in ("--set", override)]
    folder = work / (f"{name}-other" if overrides else name)
    amata("compare", str(RECORDS / f"{name}.toml"), "--seeds", str(SEEDS), *sets, "--out", str(folder))
    if not overrides:
        keep(folder, RECORDS / name)


# The page

CLAIMS = {"pgd20": {"pgd-20": 0.476, "clean": 0.77}, "autoattack": {"autoattack@1000": 0.46}}
"""What the mean over the seeds must be at least."""


def records_table() -> str:
    rows = []
    for name, claims in CLAIMS.items():
        claim = " and ".join(f"{attack} ≥ {100 * least:g}%" for attack, least in claims.items())
        files = sorted((RECORDS / name).glob("runs/*/summary.json"))
        if len(files) < SEEDS:
            rows.append([claim, "not measured yet", "", "", "", ""])
            continue
        summaries = [json.loads(file.read_text()) for file in files]
        devices = {json.loads(file.with_name("env.json").read_text())["device"] for file in files}
        found = {attack: [s["evaluation"][attack]["accuracy"] for s in summaries] for attack in summaries[0]["evaluation"]}
        met = all(sum(found[attack]) / len(files) >= least for attack, least in claims.items())
        told = ", ".join(f"{attack} {mean(values, 2, 100)}" for attack, values in found.items())
        spent = mean([s["train_seconds"] for s in summaries], 1)
        rows.append(
            [claim, "yes" if met else "**no**", spent, told, f"[`{name}.toml`]({name}.toml), {len(files)} seeds", ", ".join(devices)]
        )
    return markdown(["claim", "met", "seconds", "accuracy %", "recipe", "device"], rows)


def tried_table() -> str:
    if not tried():
        return "Nothing yet."
    rows = [
        [
            row["trial"],
            *(f"`{' '.join(row['set'])}`",),
            f"{row['train_seconds']:.1f}",
            *(f"{100 * row[a]:.2f}" for a in ("pgd-20", "clean")),
        ]
        for row in sorted(tried(), key=lambda row: row["train_seconds"])
    ]
    return markdown(["trial", "settings beside those all share", "seconds", "PGD-20 %", "clean %"], rows)


def shared_line() -> str:
    return f"All: `{' '.join(BASE)}`, the rest as in `cifar10-amata`; one seed each, tested on the 5,000 held-out images."


def main(command: str = "", *rest: str) -> None:
    if command == "explore":
        explore(float(rest[0]) if rest else 3600)
    elif command == "measure" and rest:
        name, work, *overrides = rest if len(rest) > 1 else (*rest, "runs/records")
        if name not in CLAIMS:
            sys.exit(f"error: there is no record {name!r}; there are {', '.join(CLAIMS)}")
        measure(name, Path(work), overrides)
    elif command not in ("", "--check") or rest:
        sys.exit(f"error: this is not understood\n\n{__doc__}")
    else:
        rewrite({RECORDS / "README.md": {"records": records_table, "shared": shared_line, "tried": tried_table}}, "records")


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
