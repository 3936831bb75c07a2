"""The paper's experiments, measured anew.

python tools/paper.py measure STUDY [WORK]   trains and evaluates into WORK (runs/paper) and keeps the small files in results/paper;
                                             the same command goes on with an interrupted study; data sets are looked for in $AMATA_DATA
python tools/paper.py                        rewrites docs/paper.md from results/paper (--check only compares)
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amata import recipes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "paper"
KEPT = ("*.json", "figures/*.svg", "runs/*/summary.json", "runs/*/metrics.jsonl", "runs/*/recipe.toml", "runs/*/env.json")


@dataclass(frozen=True)
class Study:
    """One comparison and what is measured on its runs afterwards: a file's name and the command whose output it holds."""

    recipes: dict[str, tuple[str, tuple[str, ...]]]
    attacks: tuple[str, ...]
    seeds: int = 1
    target: float | None = None
    after: tuple[tuple[str, tuple[str, ...]], ...] = ()


SHORT = ("train.epochs=30", "optim.milestones=[22,27]")
"""The paper's 100 epochs with drops of the rate at 75 and 90, in thirty."""


def autoattack(*names: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((f"autoattack-{n}", ("eval", f"runs/{n}-seed0", "--attacks", "autoattack@1000", "--json")) for n in names)


CIFAR10 = ("clean", "pgd-20", "cw-pgd-20", "cw-l2-100@1000")

STUDIES = {
    "cifar10": Study(
        {"pgd10": ("cifar10-pgd10", SHORT), "amata": ("cifar10-amata", SHORT)},
        CIFAR10,
        seeds=3,
        target=0.45,
        after=autoattack("pgd10", "amata"),
    ),
    "cifar10-others": Study(
        {
            "erm": ("cifar10-erm", SHORT),
            "pgd2": ("cifar10-pgd2", SHORT),
            "fat": ("cifar10-fat", (*SHORT, "method.tau=[[0,0],[15,1],[27,2]]")),
            "fosc": ("cifar10-dat", (*SHORT, "method.dynamic_epochs=24")),
        },
        CIFAR10,
        target=0.45,
        after=autoattack("erm", "pgd2", "fat", "fosc"),
    ),
}


def measure(name: str, work: Path, overrides: Sequence[str] = ()) -> None:
    study, folder = STUDIES[name], work / name
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    attacks = ", ".join(f'"{a}"' for a in study.attacks)
    paths = []
    for title, (base, sets) in study.recipes.items():
        paths.append(folder / "recipes" / f"{title}.toml")
        paths[-1].write_text(recipes.load(base, [*sets, f"eval.attacks=[{attacks}]", "train.tensorboard=false", *overrides]).to_toml())
    target = ["--target", str(study.target)] if study.target else []
    amata("compare", *map(str, paths), "--seeds", str(study.seeds), *target, "--out", str(folder))
    for file, command in study.after:
        if not (folder / f"{file}.json").is_file():
            done = amata(*(str(folder / c) if c.startswith("runs/") else c for c in command), capture=True)
            (folder / f"{file}.json").write_text(done)
    for pattern in KEPT:
        for source in folder.glob(pattern):
            kept = RESULTS / name / source.relative_to(folder)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, kept)


def amata(*arguments: str, capture: bool = False) -> str:
    print("amata", *arguments, flush=True)
    done = subprocess.run([sys.executable, "-m", "amata", *arguments], stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


def main(command: str = "write", *rest: str) -> None:
    if command == "measure":
        name, work, *overrides = *rest, *(["runs/paper"] if len(rest) == 1 else [])
        measure(name, Path(work), overrides)
        return


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
