"""The speed record for robust CIFAR-10: entries, claims, and the page records/README.md.

python evidence/records.py                       writes the page (--check compares its tables)
python evidence/records.py explore [SECONDS]     runs the trials that are not in records/tried.jsonl
python evidence/records.py enter NAME TRIAL      writes records/NAME.toml: the trial on all images
python evidence/records.py measure NAME [WORK]   trains records/NAME.toml with three seeds in WORK
                                                 (runs/records) and stores the small files

CIFAR-10 is read from $AMATA_DATA.
"""

import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import speed_front
from amata.runs import RunFolder
from definition import RECORDS, ROOT
from measure import carry_out
from page import markdown, rewrite
from record_trials import BASE, START, TRIALS, explore, shared_line, tried_table
from stored import entry_runs, mean, runs_of, summary
from study import STUDIES, autoattack

SEEDS = 3


def enter(name: str, trial: str) -> None:
    """Write a trial as an entry: all training images, no validation split."""
    from amata import recipes

    if name not in CLAIMS or trial not in TRIALS:
        sys.exit(
            f"error: unknown record or trial; records: {', '.join(CLAIMS)}; "
            f"trials: {'; '.join(TRIALS)}"
        )
    recipe = recipes.load(
        START,
        [*BASE, *TRIALS[trial], "data.valid=0", 'eval.attacks=["clean","pgd-20","cw-pgd-20"]'],
    )
    (RECORDS / f"{name}.toml").write_text(recipe.to_toml())


MET = "yes"
"""In a row of the page: the claim is met."""
CLAIMS = {"pgd20": {"pgd-20": 0.476, "clean": 0.77}, "autoattack": {"autoattack@1000": 0.46}}
"""The lowest accuracies, as means over the seeds, that meet each claim."""
STUDIES_OF = {
    ("cifar10-fast-recipe", "linear-2-3"): [CLAIMS["pgd20"]],
    ("cifar10-20s", "linear-1-2"): [CLAIMS["pgd20"], {"autoattack": 0.46}],
    ("cifar10-18s", "linear-1-2"): [CLAIMS["pgd20"]],
    ("cifar10-18s", "linear-1-2-short"): [CLAIMS["pgd20"]],
    ("cifar10-13s", "linear-1-2"): [CLAIMS["pgd20"]],
    ("cifar10-13s-ema", "linear-1-2"): [CLAIMS["pgd20"]],
    ("cifar10-27s", "linear-2-3"): [{"autoattack": 0.46}],
    ("cifar10-27s-tuning", "k2"): [{"autoattack": 0.46}],
    ("cifar10-1m", "linear-2-4"): [{"autoattack": 0.46}, {"autoattack": 0.48}],
    ("cifar10-5m", "linear-2-4"): [{"autoattack": 0.48}, {"autoattack": 0.50, "clean": 0.78}],
}
"""Arms of studies that were stated before their runs, and their claims; autoattack is on all 10,000
test images. Linear 2 -> 3 is the recipe of `pgd20`, and linear 2 -> 4 of cifar10-1m that of
`autoattack`, with a faster engine."""


def measure(name: str, work: Path, overrides: Sequence[str]) -> None:
    sets = [part for override in overrides for part in ("--set", override)]
    compared = (str(RECORDS / f"{name}.toml"), "--seeds", str(SEEDS), *sets)
    seeds = (
        range(SEEDS)
        if any(attack.startswith("autoattack") for attack in CLAIMS[name])
        else [SEEDS - 1]
    )
    after = autoattack(*(f"{name}-seed{seed}" for seed in seeds))
    carry_out(
        work / (f"{name}-other" if overrides else name),
        None if overrides else RECORDS / name,
        compared,
        after,
    )


# The page


HEAD = ["claim", "met", "seconds", "wall seconds", "accuracy %", "recipe", "device"]


def rows() -> list[list[str]]:
    """The entries, and the arms of studies that meet or aim at a claim."""
    found = [
        row(claims, *entry(name), f"[`{name}.toml`]({name}.toml)")
        for name, claims in CLAIMS.items()
    ]
    for (study, arm), every in STUDIES_OF.items():
        place = f"{STUDIES[study].labels[arm]} of [`{study}`](../studies/{study}.toml)"
        found += [row(claims, *stored_arm(study, arm), place) for claims in every]
    return sorted(
        found, key=lambda cells: (cells[0], float(cells[2].split()[0]) if cells[2] else 0)
    )


def records_table() -> str:
    """What meets its claim, the fastest first."""
    met = [[cells[0], *cells[2:]] for cells in rows() if cells[1] == MET]
    return markdown([HEAD[0], *HEAD[2:]], met)


def attempts_table() -> str:
    """What missed its claim, or is not measured yet."""
    return markdown(HEAD, [cells for cells in rows() if cells[1] != MET])


Runs = tuple[list[Path], list[dict[str, Any]]]
"""The folders of runs, and their results by attack, also those from later."""


def entry(name: str) -> Runs:
    runs = entry_runs(name)
    later = [json.loads(f.read_text()) for f in (RECORDS / name).glob("autoattack-*.json")]
    return runs, [*(summary(run)["evaluation"] for run in runs), *later]


def stored_arm(study: str, arm: str) -> Runs:
    runs = runs_of(study, arm)
    return runs, [summary(run)["evaluation"] for run in runs]


def row(
    claims: dict[str, float], runs: list[Path], results: list[dict[str, Any]], place: str
) -> list[str]:
    """What the runs took and reached, and whether that meets the claim."""
    claim = " and ".join(f"{attack} ≥ {100 * least:g}%" for attack, least in claims.items())
    found: dict[str, list[float]] = {}
    for attack, result in ((a, r) for every in results for a, r in every.items()):
        found.setdefault(attack, []).append(result["accuracy"])
    seeds = min(len(found.get(attack, ())) for attack in claims)
    if not seeds:
        return [claim, "not measured yet", "", "", "", place, ""]
    met = all(statistics.mean(found[attack]) >= least for attack, least in claims.items())
    answer = MET if met else "no"
    return [
        claim,
        answer if seeds >= SEEDS else f"{seeds} of {SEEDS} seeds",
        mean([summary(run)["train_seconds"] for run in runs], 1),
        wall(runs),
        ", ".join(f"{attack} {mean(values, 2, 100)}" for attack, values in found.items()),
        f"{place}, {len(runs)} seed{'s' * (len(runs) > 1)}",
        ", ".join({env["device"] for run in runs for env in RunFolder(run).environments()}),
    ]


def wall(runs: list[Path]) -> str:
    """Seconds from the start of a run to its trained model, the fewest and the most. Left out are
    resumed runs, of which only the last part is known, and runs without a record."""
    known = []
    for found in map(summary, runs):
        parts = found.get("wall_seconds")
        if parts and abs(parts["train"] - found["train_seconds"]) < 0.05 * found["train_seconds"]:
            known.append(parts["total"] - parts["evaluate"])
    if not known:
        return "not recorded"
    ends = sorted({f"{seconds:.0f}" for seconds in (min(known), max(known))}, key=float)
    return " to ".join(ends)


def main(command: str = "", *rest: str) -> None:
    if command == "explore":
        explore(float(rest[0]) if rest else 3600)
    elif command == "enter" and len(rest) == 2:
        enter(*rest)
    elif command == "measure" and rest:
        name, work, *overrides = rest if len(rest) > 1 else (*rest, "runs/records")
        if name not in CLAIMS:
            sys.exit(f"error: unknown record {name!r}; choose from {', '.join(CLAIMS)}")
        measure(name, Path(work), overrides)
    elif command not in ("", "--check") or rest:
        sys.exit(f"error: unknown arguments\n\n{__doc__}")
    else:
        if command != "--check":
            speed_front.draw(RECORDS / "front.svg")
        rewrite(
            {
                RECORDS / "README.md": {
                    "records": records_table,
                    "attempts": attempts_table,
                    "front": speed_front.part,
                    "shared": shared_line,
                    "tried": tried_table,
                }
            },
            "records",
        )


if __name__ == "__main__":
    os.chdir(ROOT)
    main(*sys.argv[1:])
