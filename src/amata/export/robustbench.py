"""A RobustBench entry: architecture, weights, and a claim with the fields of its model_info."""

import re
from pathlib import Path

import torch

from amata.export.card import card, code
from amata.export.trained import Trained
from amata.runs.files import write_atomic, write_json

THREATS = {"linf": "Linf", "l2": "L2"}


def claim(trained: Trained) -> dict[str, object]:
    """RobustBench's fields. An accuracy that was not measured is null; the footnote has n. Whoever
    submits the entry fills in link, authors and venue."""
    strongest = trained.strongest()
    measured = (
        [f"reported under {strongest} on {trained.evaluation[strongest]['n']} test images"]
        if strongest
        else []
    )
    return {
        "link": "",
        "name": trained.name,
        "authors": "",
        "additional_data": trained.pretrained,
        "number_forward_passes": 1,
        "dataset": trained.recipe.data.name,
        "venue": "",
        "architecture": trained.recipe.model.name,
        "eps": trained.eps,
        "clean_acc": trained.percent("clean"),
        "reported": trained.percent(strongest) if strongest else None,
        "autoattack_acc": trained.percent("autoattack"),
        "unreliable": bool(trained.warnings),
        "footnote": "; ".join([*measured, *trained.warnings]),
    }


def write_robustbench(trained: Trained, out: Path) -> None:
    norm = THREATS[trained.recipe.ball.norm]
    source = trained.architecture(
        'torch.load(here / "weights.pt", map_location="cpu", weights_only=True)'
    )
    # The name is a stranger's, or hf/OWNER/NAME: no part of it may name another folder.
    data = re.sub(r"[^\w-]+", "-", trained.recipe.data.name)[:60]
    info = out / "model_info" / data / norm
    info.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "architecture.py", source.encode())
    write_json(out / "config.json", trained.config())
    torch.save(trained.weights, out / "weights.pt")
    write_json(info / f"{trained.name}.json", claim(trained))
    use = [
        *code("import amata", 'model = amata.load(".")  # this folder'),
        "",
        "Without amata, `architecture.py` needs torch:",
        "",
        *code("from architecture import load", "model = load()"),
    ]
    write_atomic(out / "README.md", card(trained, use).encode())
