"""Fine-tuning against training from scratch: five classes held out of the 40-class photo set.

python evidence/finetune.py            writes the table of docs/your-model.md (--check compares it)
python evidence/finetune.py --measure  first trains what is missing in results/finetune, in
                                       runs/finetune; three minutes on an H200
python evidence/finetune.py --try      the same with a tiny network on a few images; stores nothing

Reads train-*.parquet and valid-*.parquet of $AMATA_DATA/tinyimagenet40.

Stated before the first run. A PreActResNet-18 is trained with the settings of cifar10-amata-quick,
at 64x64 pixels and eps 4/255, on the photos of 35 classes. The other five classes, every eighth by
label, have 250 photos each for training and validation, of which 250 in all are for validation, and
200 for the test. The arms:

- finetune: the recipe folder-finetune with these weights;
- no-warmup: the same without eps warm-up;
- scratch: the same settings without these weights, and without eps warm-up;
- scratch-long: scratch for four times as many epochs.

The learning rate of finetune and of scratch is tuned over the same grid, with one run per value and
a seed that is used nowhere else, by the best robust accuracy on the validation split. no-warmup and
scratch-long use the value of finetune and scratch. All arms are then trained with seeds 0 to 2;
the weights, and so the pretraining, are the same for all seeds. Compared: accuracy under PGD-20 and
CW-PGD-20 on the 1,000 test photos, by seed. Arms are trained at the same time, so that seconds are
not compared; cost is counted in gradient evaluations. Differences below three points are within the
spread of the test set and say nothing.
"""

import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from amata import recipes
from definition import ROOT
from measure import amata, store_run
from page import markdown, refuse_others, rewrite
from stored import mean, read_rows, summary

RESULTS = ROOT / "evidence" / "results" / "finetune"
PAGE = ROOT / "docs" / "your-model.md"
HELD_OUT = range(7, 40, 8)
"""The labels of the five classes."""
TRAIN = 250
"""Photos of each of them for training and validation; the others are for the test."""
GRID = (0.003, 0.01, 0.03, 0.1)
TUNING_SEED = 10
SEEDS = 3
AT_ONCE = 6
ATTACKS = ("clean", "pgd-20", "cw-pgd-20")
SMALL = (
    "data.name=folder",
    "data.resize=64",
    "data.crop=64",
    "data.in_memory=true",
    "data.augment=crop-flip",
    "train.tensorboard=false",
    f"eval.attacks={json.dumps(ATTACKS)}",
)
NETWORK = (
    "model.name=preactresnet18",
    "model.mean=[0.485, 0.456, 0.406]",
    "model.std=[0.229, 0.224, 0.225]",
)
PRETRAINING = (
    *SMALL,
    *NETWORK,
    "data.batch_size=256",
    "data.pad=8",
    "threat.eps=4/255",
    "schedule.tau=6.5/255",
    "optim.milestones=[13]",
    "train.epochs=15",
    "eval.batch_size=250",
)
ARM = (
    *SMALL,
    *NETWORK,
    "data.pad=8",
    "data.valid=250",
    "eval.batch_size=250",
    # Compiling takes longer than these runs.
    "train.engine=plain",
)
SCRATCH = ("model.new_head=false", "train.eps_warmup=0")
TRY = (
    "model.name=tinycnn",
    "data.resize=28",
    "data.crop=28",
    "data.workers=0",
    "train.epochs=4",
    "train.device=cpu",
)
TRY_ARM = ("data.valid=50", "train.eps_warmup=1")
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    # title: whose learning rate it uses, and its settings
    "finetune": ("finetune", ()),
    "no-warmup": ("finetune", ("train.eps_warmup=0",)),
    "scratch": ("scratch", SCRATCH),
    "scratch-long": ("scratch", (*SCRATCH, "train.epochs=40")),
}


def write_folders(source: Path, target: Path, per_class: int | None = None) -> None:
    """The photos as target/many (35 classes) and target/few (the held-out ones), each with train
    and val. `per_class` limits the photos of a class."""
    import pyarrow.parquet as pq

    counts: dict[int, int] = {}
    for part in ("train", "valid"):
        for file in sorted(source.glob(f"{part}-*.parquet")):
            for row in pq.read_table(file).to_pylist():
                label, content = row["label"], row["image"]["bytes"]
                number = counts[label] = counts.get(label, -1) + 1
                if label in HELD_OUT:
                    split = "train" if number < (per_class or TRAIN) else "val"
                    place = target / "few" / split
                else:
                    split = "train" if part == "train" else "val"
                    place = target / "many" / split
                path = place / f"{label:03d}" / f"{number:04d}.jpg"
                if per_class and len(list(path.parent.glob("*"))) >= per_class:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    if not counts:
        sys.exit(f"error: no parquet files in {source}; set AMATA_DATA")


def train(work: Path, title: str, recipe: str, seed: int, sets: tuple[str, ...]) -> Path:
    """Train or resume one run, unless it is stored."""
    run = work / "runs" / title
    file = work / "recipes" / f"{title}.toml"
    if not (run / "recipe.toml").is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(recipes.load(recipe, [*sets, f"train.seed={seed}"]).to_toml())
        amata("train", file, "--out", run)
    elif not (run / "summary.json").is_file():
        amata("train", "--resume", run)
    return run


def measure(work: Path, results: Path, *, small: bool = False) -> None:
    """Write the folders, pretrain, tune, train all arms, and store the small files of the runs."""
    photos, tried = work / "photos", TRY if small else ()
    if not photos.is_dir():
        source, partial = Path(os.environ["AMATA_DATA"]) / "tinyimagenet40", work / "photos.part"
        write_folders(source, partial, 40 if small else None)
        partial.rename(photos)
    weights = train(
        work,
        "pretraining",
        "cifar10-amata-quick",
        0,
        (*PRETRAINING, f"data.root={photos / 'many'}", *tried),
    )

    def arm(title: str, kind: str, lr: float, seed: int, sets: tuple[str, ...]) -> Path:
        start = (f"model.weights={weights}",) if kind == "finetune" else ()
        own = (*ARM, *sets, *start, f"optim.lr={lr}", f"data.root={photos / 'few'}")
        return train(
            work, title, "folder-finetune", seed, (*own, *tried, *(TRY_ARM if small else ()))
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        tuned = {
            (kind, lr): pool.submit(arm, f"tune-{kind}-{lr}", kind, lr, TUNING_SEED, ARMS[kind][1])
            for kind in ("finetune", "scratch")
            for lr in GRID
        }
        tuning: dict[str, dict[str, float]] = {"finetune": {}, "scratch": {}}
        for (kind, lr), run in tuned.items():
            tuning[kind][str(lr)] = best_valid(run.result())
        chosen = {kind: float(max(found, key=found.__getitem__)) for kind, found in tuning.items()}
        runs = [
            pool.submit(arm, f"{title}-seed{seed}", kind, chosen[kind], seed, sets)
            for seed in range(SEEDS)
            for title, (kind, sets) in ARMS.items()
        ]
        for finished in [weights, *(done.result() for done in runs)]:
            store_run(finished, results / "runs" / finished.name)
    (results / "tuning.json").write_text(json.dumps({"valid": tuning, "lr": chosen}, indent=1))


def best_valid(run: Path) -> float:
    """The best robust accuracy on the validation split."""
    return max(row["valid"]["pgd-10"] for row in read_rows(run)[0] if "valid" in row)


def table() -> str:
    if not (RESULTS / "tuning.json").is_file():
        return "Not measured yet: `python evidence/finetune.py --measure`."
    lr: dict[str, float] = json.loads((RESULTS / "tuning.json").read_text())["lr"]
    rows, robust = [], {}
    for title, (kind, _) in ARMS.items():
        files = sorted((RESULTS / "runs").glob(f"{title}-seed*/summary.json"))
        runs = [summary(file.parent) for file in files]
        cells = [[run["evaluation"][attack]["accuracy"] for run in runs] for attack in ATTACKS]
        robust[title] = cells[1]
        rows.append(
            [
                title,
                str(runs[0]["epochs"]),
                f"{lr[kind]:g}",
                f"{statistics.mean(run['grad_evals'] for run in runs):,.0f}",
                *(mean(cell, 1, 100) for cell in cells),
            ]
        )
    head = ["arm", "epochs", "lr", "gradient evaluations", "clean %", "PGD-20 %", "CW-PGD-20 %"]
    lines = [markdown(head, rows), "", "PGD-20, by seed:", ""]
    for other in ("scratch", "scratch-long", "no-warmup"):
        gaps = [100 * (a - b) for a, b in zip(robust["finetune"], robust[other], strict=True)]
        shown = ", ".join(f"{gap:+.1f}" for gap in gaps)
        lines.append(f"- finetune against {other}: {shown} points")
    return "\n".join(lines)


def main() -> None:
    if "--try" in sys.argv:
        work = Path("runs/finetune-try")
        measure(work, work / "results", small=True)
        return
    if "--measure" in sys.argv:
        measure(Path("runs/finetune"), RESULTS)
    rewrite({PAGE: {"finetune": table}}, "finetune")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure", "--try")
    os.chdir(ROOT)
    main()
