"""Every method with and without Amata on 5,000 digits: python evidence/methods.py trains what is
missing, writes evidence/results/methods-mnist5k/ and docs/methods/README.md; --check only compares
the page with the files."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from page import refuse_others, rewrite
from study import keep_run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "methods-mnist5k"
PAGE = ROOT / "docs" / "methods" / "README.md"

# (plain recipe, the same with Amata on it), by method
PAIRS = {
    "pgd": ("mnist5k-pgd", ("mnist5k-amata",)),
    "free": ("mnist5k-free", ("mnist5k-amata-free",)),
    "fast": ("mnist5k-fast", ("mnist5k-amata-fast", "mnist5k-amata-fast-skip")),
    "nfgsm": ("mnist5k-nfgsm", ()),
    "yopo": ("mnist5k-yopo", ("mnist5k-amata-yopo",)),
    "atta": ("mnist5k-atta", ("mnist5k-amata-atta",)),
    "fat": ("mnist5k-fat", ("mnist5k-amata-fat",)),
    "dat": ("mnist5k-dat", ("mnist5k-amata-dat",)),
    "trades": ("mnist5k-trades", ("mnist5k-amata-trades",)),
}


def train_missing() -> None:
    from amata import recipes
    from amata.console import ConsoleReporter
    from amata.training.experiment import train

    names = [name for plain, annealed in PAIRS.values() for name in (plain, *annealed)]
    for name in names:
        if (RESULTS / name / "summary.json").is_file():
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder, ConsoleReporter() as reporter:
            run = train(recipes.load(name), Path(folder) / name, reporter)
            keep_run(run.path, RESULTS / name)


def rows() -> list[dict[str, Any]]:
    table = []
    for method, (plain, annealed) in PAIRS.items():
        for name in (plain, *annealed):
            summary = json.loads((RESULTS / name / "summary.json").read_text())
            lines = [
                json.loads(line)
                for line in (RESULTS / name / "metrics.jsonl").read_text().splitlines()
            ]
            table.append(
                {
                    "method": method,
                    "recipe": name,
                    "epochs": summary["epochs"],
                    "clean": summary["evaluation"]["clean"]["accuracy"],
                    "pgd-40": summary["evaluation"]["pgd-40"]["accuracy"],
                    "grad_evals": summary["grad_evals"],
                    "per_image": summary["grad_evals_per_image"],
                    "train_seconds": summary["train_seconds"],
                    "rolled_back": sum("event" in line for line in lines),
                }
            )
    return table


def markdown() -> str:
    lines = [
        "| recipe | epochs | clean % | PGD-40 % | gradient evaluations | per image and epoch | "
        "seconds | rolled back |",
        "|---" * 8 + "|",
    ]
    for r in rows():
        lines.append(
            f"| `{r['recipe']}` | {r['epochs']} | {100 * r['clean']:.1f} | "
            f"{100 * r['pgd-40']:.1f} | {r['grad_evals']:,} | "
            f"{r['per_image']:.2f} | {r['train_seconds']:.0f} | {r['rolled_back']} |"
        )
    return "\n".join(lines)


def costs() -> str:
    """What the meter counts for one image under a few controls, first-layer passes behind a
    plus."""
    import torch

    from amata.batch import Batch
    from amata.engine import PlainNet
    from amata.methods import METHODS
    from amata.models import build
    from amata.schedules import Control
    from amata.seeds import generator
    from amata.threat import Linf

    controls = (1, 2, 5, 10)
    batch = Batch(
        torch.rand(16, 1, 28, 28, generator=generator("costs")),
        torch.arange(16) % 10,
        torch.arange(16),
        16,
    )
    lines = [
        "| method | " + " | ".join(f"K = {k}" for k in controls) + " |",
        "|---" * (len(controls) + 1) + "|",
    ]
    for name, method in METHODS.items():
        cells = []
        for k in controls:
            model = build("tinycnn", in_channels=1, classes=10)
            net = PlainNet(model, torch.optim.SGD(model.parameters(), lr=0.1))
            method(ball=Linf(0.1)).step(net, batch, Control(k, 0.05), generator(0), {})
            first = (
                f" + {net.first_layer_evals / 16:g} first-layer" if net.first_layer_evals else ""
            )
            # everybody's first pass, and DAT's second
            least = {"fat": 2, "dat": min(k, 2) + 1}.get(name, k + 1)
            stops = name in ("fat", "dat") and least < k + 1
            cells.append(f"{least} to {k + 1}" if stops else f"{net.grad_evals / 16:g}{first}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    if "--check" not in sys.argv:
        train_missing()
        (RESULTS / "table.json").write_text(json.dumps(rows(), indent=2) + "\n")
        (RESULTS / "table.md").write_text(markdown() + "\n")
    rewrite({PAGE: {"results": markdown, "costs": costs}}, "methods")


if __name__ == "__main__":
    refuse_others(__doc__, "--check")
    main()
