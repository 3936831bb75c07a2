"""Networks of timm, trained for one epoch in both engines: one convnet and one vision transformer.

python evidence/timm_models.py            writes the table of docs/your-model.md (--check compares)
python evidence/timm_models.py --measure  first trains on CIFAR-10 of $AMATA_DATA and writes
                                          results/timm/models.json; three minutes on an H200
python evidence/timm_models.py --try KEY=VALUE...
                                          the same with overrides; prints the results alone

Both engines train in bf16 and with the same seeds, so that their losses agree up to rounding. The
first ones are stored. Needs timm, and torchvision, which timm imports.
"""

import json
import sys
from dataclasses import replace
from typing import Any

from definition import ROOT
from page import markdown, refuse_others, rewrite

RESULTS = ROOT / "evidence" / "results" / "timm" / "models.json"
PAGE = ROOT / "docs" / "your-model.md"
MODELS = {
    "timm/resnet10t": (),
    "timm/vit_tiny_patch16_224": ("model.args={img_size = 32, patch_size = 4}",),
}
ENGINES = ("plain", "fast")
FIRST = 10
"""Losses that are stored."""
SETTINGS = (
    "data.batch_size=256",
    "optim.lr=0.01",
    "optim.warmup=0.2",
    "optim.milestones=[]",
    "optim.ema=0",
    "train.epochs=1",
    "train.precision=bf16",
    'eval.attacks=["clean", "pgd-20"]',
    "eval.limit=2000",
    "eval.batch_size=500",
)


def measure(overrides: list[str]) -> dict[str, Any]:
    """Train and test every network in every engine. The images are read once."""
    import timm
    import torch

    from amata import recipes
    from amata.reporter import BatchInfo, Reporter
    from amata.runs.environment import environment
    from amata.training.device import resolve_device
    from amata.training.evaluations import evaluate_recipe
    from amata.training.loop import train_model
    from amata.training.optim import make_optimizer
    from amata.training.setup import build_model, load_data

    class FirstLosses(Reporter):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def batch(self, info: BatchInfo) -> None:
            if len(self.losses) < FIRST and info.loss is not None:
                self.losses.append(float(info.loss))

    base = recipes.load("cifar10-amata-quick", [*SETTINGS, *overrides])
    splits, device = load_data(base), resolve_device(base.train.device)
    runs = []
    for name, args in MODELS.items():
        for engine in ENGINES:
            sets = [*SETTINGS, f"model.name={name}", *args, f"train.engine={engine}", *overrides]
            recipe, seen = recipes.load("cifar10-amata-quick", sets), FirstLosses()
            recipe = replace(recipe, name=name)
            model = build_model(recipe, splits.train, trust=True)
            groups = make_optimizer(model, recipe.optim, splits.train.shape).param_groups
            hidden = {id(p) for g in groups if g["orthogonal"] for p in g["params"]}
            fitted = train_model(model, splits.train, None, recipe, reporter=seen)
            found = evaluate_recipe(fitted.model, recipe, splits.test, Reporter())
            (row,) = fitted.epochs
            runs.append(
                {
                    "model": name,
                    "args": recipe.model.args,
                    "engine": engine,
                    "parameters": sum(p.numel() for p in model.parameters()),
                    "matrices_by_sgd": [
                        n
                        for n, p in model.named_parameters()
                        if p.dim() > 1 and id(p) not in hidden
                    ],
                    "images": len(splits.train),
                    "seconds": row["train_seconds"],
                    "compile_seconds": row.get("compile_seconds", 0.0),
                    "first_losses": seen.losses,
                    "loss": row["loss"],
                    "evaluation": {attack: result.to_dict() for attack, result in found.items()},
                }
            )
            print(json.dumps(runs[-1]), flush=True)
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    commit = environment(device)["commit"]
    return {"device": hardware, "commit": commit, **versions, "runs": runs}


def table() -> str:
    if not RESULTS.is_file():
        return "Not measured yet: `python evidence/timm_models.py --measure`."
    found = json.loads(RESULTS.read_text())
    rows = []
    for run in found["runs"]:
        other = next(r for r in found["runs"] if r["model"] == run["model"])
        pairs = zip(run["first_losses"], other["first_losses"], strict=True)
        apart = max(abs(a - b) / abs(b) for a, b in pairs)
        clean, robust = (run["evaluation"][a]["accuracy"] for a in ("clean", "pgd-20"))
        rows.append(
            [
                f"`{run['model']}`",
                run["engine"],
                f"{run['seconds']:.1f}",
                f"{run['compile_seconds']:.0f}",
                f"{run['loss']:.3f}",
                f"{100 * apart:.2f}" if run is not other else "",
                f"{100 * clean:.1f}",
                f"{100 * robust:.1f}",
            ]
        )
    head = ["network", "engine", "seconds", "compiling", "loss", "first losses differ by %"]
    about = (
        f"One epoch of {found['runs'][0]['images']:,} images on {found['device']}, "
        f"torch {found['torch']}, timm {found['timm']}:"
    )
    return f"{about}\n\n{markdown([*head, 'clean %', 'PGD-20 %'], rows)}"


def main() -> None:
    if sys.argv[1:2] == ["--try"]:
        print(json.dumps(measure(sys.argv[2:])))
        return
    refuse_others(__doc__, "--check", "--measure")
    if "--measure" in sys.argv:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(measure([]), indent=1) + "\n")
    rewrite({PAGE: {"timm": table}}, "timm_models")


if __name__ == "__main__":
    main()
