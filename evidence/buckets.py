"""Measures early stopping per sample (fat, dat): batches compacted to a few sizes against full-size
batches.

python evidence/buckets.py DATA_ROOT OUT.json
    Trains both ways for a few epochs on part of CIFAR-10; writes the seconds of the last epoch.
"""

import json
import sys
from pathlib import Path

import torch

from amata import recipes
from amata.engine import early_stop
from amata.training.loop import train_model
from amata.training.setup import build_model, load_data

EPOCHS, IMAGES = 8, 12_800


def main(root: str, out: str) -> None:
    rows = []
    for name in ("cifar10-fat", "cifar10-dat"):
        recipe = recipes.load(
            name,
            [
                f"data.root={root}",
                f"train.epochs={EPOCHS}",
                "data.batch_size=128",
                "data.valid=0",
                "train.guard=ignore",
            ],
        )
        images = load_data(recipe).train.subset(torch.arange(IMAGES))
        for kind, buckets in (("compacted", (1.0, 0.5, 0.25, 0.125)), ("full size", (1.0,))):
            early_stop.BUCKETS = buckets
            fitted = train_model(build_model(recipe, images), images, None, recipe)
            spent = [row["train_seconds"] for row in fitted.epochs]
            cost = fitted.epochs[-1]["grad_evals"] - fitted.epochs[-2]["grad_evals"]
            rows.append(
                {
                    "recipe": name,
                    "shapes": kind,
                    "seconds": spent[-1] - spent[-2],
                    "grad_evals_per_image": cost / IMAGES,
                }
            )
            print(rows[-1], flush=True)
    result = {"device": torch.cuda.get_device_name(), "batch": 128, "images": IMAGES, "rows": rows}
    Path(out).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
