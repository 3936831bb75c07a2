"""Writes the tables of docs/methods/README.md: python evidence/methods.py (--check compares them).

--measure first trains what is missing in results/methods-mnist5k: every method with and without
Amata on 5,000 digits, twenty minutes on two cores.
"""

import sys
import tempfile
from pathlib import Path

import stored
from measure import store_run
from page import markdown, refuse_others, rewrite

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "methods-mnist5k"
PAGE = ROOT / "docs" / "methods" / "README.md"

# the plain recipe of each method, and those with Amata
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
    "mart": ("mnist5k-mart", ("mnist5k-amata-mart",)),
    "nuat": ("mnist5k-nuat", ("mnist5k-amata-nuat",)),
    "fgsm-pgi": ("mnist5k-fgsm-pgi", ("mnist5k-amata-fgsm-pgi",)),
    "awp": ("mnist5k-awp", ("mnist5k-amata-awp",)),
}


FASTAT = "cifar10-fastat"
PEERS = {
    "N-FGSM": (78.6, 47.8, 1941, "nfgsm"),
    "FGSM-PGI": (79.7, 49.9, 2647, "fgsm-pgi-code"),
    "FGSM-PGI, crops undone": (None, None, None, "fgsm-pgi"),
    "FGSM-PGI, K from 0 to 1": (None, None, None, "amata-fgsm-pgi"),
    "NuAT": (81.0, 50.1, 2937, "nuat"),
    "PGD-10": (82.4, 50.5, 7027, "pgd10"),
    "Amata 2 → 10": (None, None, None, "linear-2-10"),
}
"""Clean accuracy, AutoAttack and seconds of the FastAT Benchmark, with averaged weights; our arm of
the study."""


def measure() -> None:
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
            store_run(run.path, RESULTS / name)


def results_table() -> str:
    rows = []
    for name in (name for plain, annealed in PAIRS.values() for name in (plain, *annealed)):
        found, (_, events) = stored.summary(RESULTS / name), stored.read_rows(RESULTS / name)
        clean, robust = (found["evaluation"][a]["accuracy"] for a in ("clean", "pgd-40"))
        rows.append(
            [
                f"`{name}`",
                str(found["epochs"]),
                f"{100 * clean:.1f}",
                f"{100 * robust:.1f}",
                f"{found['grad_evals']:,}",
                f"{found['grad_evals_per_image']:.2f}",
                f"{found['train_seconds']:.0f}",
                str(len(events)),
            ]
        )
    head = [
        "recipe",
        "epochs",
        "clean %",
        "PGD-40 %",
        "gradient evaluations",
        "per image and epoch",
    ]
    return markdown([*head, "seconds", "rollbacks"], rows)


def fastat_table() -> str:
    """The benchmark's numbers, and ours as far as they are measured."""
    found, rows = stored.summaries(FASTAT), []
    for title, (*theirs, arm) in PEERS.items():
        runs = found.get(arm)
        ours = (
            [
                stored.accuracy(runs, "clean"),
                stored.accuracy(runs, "autoattack"),
                f"{stored.seconds(runs):.0f}",
            ]
            if runs
            else ["not measured", "", ""]
        )
        cells = ["" if number is None else f"{number:,}" for number in theirs]
        rows.append([title, *(cell for pair in zip(cells, ours, strict=True) for cell in pair)])
    head = ["clean %, theirs", "ours", "AutoAttack %, theirs", "ours", "seconds, theirs", "ours"]
    return markdown(["method", *head], rows)


def costs() -> str:
    """Gradient evaluations per image for a few K, as the engine counts them."""
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
    rows = []
    for name, method in METHODS.items():
        cells = []
        for k in controls:
            model = build("tinycnn", in_channels=1, classes=10)
            net = PlainNet(model, torch.optim.SGD(model.parameters(), lr=0.1))
            method(ball=Linf(0.1)).step(net, batch, Control(k, 0.05), generator(0), {})
            first = (
                f" + {net.first_layer_evals / 16:g} first-layer" if net.first_layer_evals else ""
            )
            # samples that stop as early as they can
            least = {"fat": 2, "dat": min(k, 2) + 1}.get(name, k + 1)
            stops = name in ("fat", "dat") and least < k + 1
            cells.append(f"{least} to {k + 1}" if stops else f"{net.grad_evals / 16:g}{first}")
        rows.append([f"`{name}`", *cells])
    return markdown(["method", *(f"K = {k}" for k in controls)], rows)


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    rewrite({PAGE: {"results": results_table, "costs": costs, "fastat": fastat_table}}, "methods")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
