"""Writes the tutorial's gallery, digits under attack of an ordinary and of a robust network:
python evidence/gallery.py (--check compares the numbers).

--measure first trains both networks if their results are missing: two minutes on two cores.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from amata.report.figures import INK, drawing
from page import refuse_others, rewrite

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "gallery.json"
ERM = ("method.name=erm", "schedule.name=constant", "schedule.steps=0", "schedule.step_size=0")
NETWORKS = {"standard training": ERM, "adversarial training": ()}
"""Changes of `mnist5k-amata`."""
DIGITS = (0, 2, 4, 6, 8)
"""The first test digit of each of these classes."""
ATTACK = "pgd-40"
AMPLIFIED = 2.5
WRONG = "#c92a2a"


def measure() -> None:
    """Train both networks and attack the digits."""
    if RESULTS.is_file():
        return
    import torch

    from amata import recipes
    from amata.attacks import parse_attack
    from amata.data import labels_of
    from amata.training.experiment import train
    from amata.training.loaded import load_trained

    found: dict[str, Any] = {}
    for title, changes in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            run = train(recipes.load("mnist5k-amata", changes), Path(folder) / "run")
            net, recipe, splits = load_trained(run.path)
            tested = run.summary()["evaluation"]
        labels = labels_of(splits.test).tolist()
        rows = torch.tensor([labels.index(digit) for digit in DIGITS])
        x, y = next(iter(splits.test.read([rows], torch.device("cpu"), None)))
        x_adv = parse_attack(ATTACK)(net, x, y, ball=recipe.ball, seed=0)
        found["clean"] = pixels(x)
        found[title] = {
            "accuracy": {k: tested[k]["accuracy"] for k in ("clean", ATTACK)},
            "adversarial": pixels(x_adv),
            "predictions": [net(images).argmax(1).tolist() for images in (x, x_adv)],
        }
    RESULTS.write_text(json.dumps(found) + "\n")


def pixels(x: Any) -> list[list[int]]:
    """Digits as rows of 784 bytes."""
    return (255 * x).round().int().flatten(1).tolist()


def draw(path: Path) -> None:
    """A row per digit: clean, perturbation and adversarial, of both networks."""
    found = json.loads(RESULTS.read_text())
    clean = np.array(found["clean"]).reshape(-1, 28, 28) / 255
    ratios = {"width_ratios": (1, 1, 1, 0.1, 1, 1, 1)}
    with drawing("gallery", len(DIGITS), 7, (7.2, 6.6), png=False, gridspec_kw=ratios) as (
        axes,
        files,
    ):
        for ax in axes.flat:
            ax.axis("off")
        for first, title in zip((0, 4), NETWORKS, strict=True):
            adversarial = np.array(found[title]["adversarial"]).reshape(-1, 28, 28) / 255
            axes[0, first + 1].set_title(f"{title}\n", fontsize=13, fontweight="bold")
            for row, digit in enumerate(DIGITS):
                shown = {
                    "clean": clean[row],
                    f"change × {AMPLIFIED:g}": 0.5 + AMPLIFIED * (adversarial[row] - clean[row]),
                    "adversarial": adversarial[row],
                }
                before, after = (said[row] for said in found[title]["predictions"])
                for column, (name, image) in enumerate(shown.items()):
                    ax = axes[row, first + column]
                    ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none")
                    said = (before, None, after)[column]
                    if said is not None:
                        ax.text(
                            0.5,
                            -0.05,
                            f"says {said}",
                            transform=ax.transAxes,
                            ha="center",
                            va="top",
                            fontsize=12,
                            color=INK if said == digit else WRONG,
                            fontweight="normal" if said == digit else "bold",
                        )
                    if row == 0:
                        ax.text(
                            0.5,
                            1.06,
                            name,
                            transform=ax.transAxes,
                            ha="center",
                            fontsize=10.5,
                            color=INK,
                        )
    path.write_bytes(files[".svg"])


def accuracies() -> str:
    """The picture and what is known of its networks, for the tutorial."""
    found = json.loads(RESULTS.read_text())
    said = [
        f"{title} {100 * found[title]['accuracy']['clean']:.1f}% clean and "
        f"{100 * found[title]['accuracy'][ATTACK]:.1f}% under the attack"
        for title in NETWORKS
    ]
    return (
        "![Digits, the change by an attack, and the attacked digits, with predictions of both "
        f"networks](gallery.svg)\n\nAccuracy on 1,000 test digits, one seed: {'; '.join(said)}."
    )


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    if "--check" not in sys.argv:
        draw(ROOT / "docs" / "gallery.svg")
    rewrite({ROOT / "docs" / "tutorial.md": {"gallery": accuracies}}, "gallery")


if __name__ == "__main__":
    refuse_others(__doc__, "--check", "--measure")
    main()
