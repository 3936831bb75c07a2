"""Where stored runs were made: commits, devices, and hashes of the data."""

from collections.abc import Sequence
from pathlib import Path

import stored
from amata.runs import RunFolder
from definition import ROOT
from page import markdown
from study import STUDIES

RESULTS = ROOT / "evidence" / "results"


def commits(runs: Sequence[Path]) -> list[str]:
    found = [env for run in runs for env in stored.environments(run)]
    return sorted({f"`{env.get('commit') or 'unknown'}`" for env in found})


def devices(runs: Sequence[Path]) -> list[str]:
    return sorted({env["device"] for run in runs for env in stored.environments(run)})


def hashes(runs: Sequence[Path], part: str) -> list[str]:
    """Of the pixels of train or test images, as far as the runs recorded them."""
    splits = [RunFolder(run).split() for run in runs]
    return sorted({f"`{s[f'{part}_pixels']}`" for s in splits if f"{part}_pixels" in s})


def unhashed(runs: Sequence[Path]) -> int:
    """How many runs recorded no hash of the data."""
    return sum("train_pixels" not in RunFolder(run).split() for run in runs)


def sentence(runs: Sequence[Path]) -> str:
    """On the pixels of the data."""
    if not runs:
        return ""
    if lacking := unhashed(runs):
        whole = lacking == len(runs)
        return f" {'The' if whole else lacking} runs did not record a hash of the data."
    train, test = (", ".join(hashes(runs, part)) for part in ("train", "test"))
    return f" Hash of the pixels: {train} (train), {test} (test)."


def groups() -> dict[str, list[Path]]:
    """The stored runs that have no section on docs/studies.md, by folder."""
    found: dict[str, list[Path]] = {}
    for file in sorted(RESULTS.rglob("env.json")):
        run = file.parent
        parent = run if run.parent == RESULTS else run.parent
        folder = parent.relative_to(RESULTS).as_posix().removesuffix("/runs")
        study = STUDIES.get(folder.removeprefix("paper/"))
        if (run / "summary.json").is_file() and (study is None or not study.about):
            found.setdefault(folder, []).append(run)
    return found


def table() -> str:
    rows = []
    for folder, runs in groups().items():
        lacking = unhashed(runs)
        cells = [", ".join(hashes(runs, part)) for part in ("train", "test")]
        if lacking:
            cells = [f"{cell}{', ' if cell else ''}{lacking} without" for cell in cells]
        made = ", ".join(commits(runs)), ", ".join(devices(runs))
        rows.append([f"`{folder}`", str(len(runs)), *made, *cells])
    head = ["folder", "runs", "commit", "device", "pixels, train", "pixels, test"]
    return markdown(head, rows)
