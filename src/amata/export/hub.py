"""A folder for the Hugging Face Hub: safetensors weights, config, architecture, model card."""

import json
import re
from pathlib import Path

from amata.export.trained import Trained
from amata.report.escape import for_markdown
from amata.runs.files import save_tensors, write_atomic, write_json

NAMED = 100
"""The most class names in a model card."""


def write_hub(trained: Trained, out: Path) -> None:
    source = trained.architecture(
        '__import__("safetensors.torch", fromlist=["load_file"]).load_file(here / '
        '"model.safetensors")'
    )
    out.mkdir(parents=True, exist_ok=True)
    about = {"recipe": trained.recipe.name, "tables": trained.recipe.deciding()}
    sizes = {"classes": list(trained.classes), "shape": list(trained.shape)}
    save_tensors(out / "model.safetensors", trained.weights, about | sizes)
    write_json(out / "config.json", trained.config())
    write_atomic(out / "architecture.py", source.encode())
    write_atomic(out / "README.md", card(trained).encode())


def card(trained: Trained) -> str:
    """The model card: how to load the model, its threat model, and what was measured how."""
    recipe, summary = trained.recipe, trained.summary
    rows = []
    for attack, r in trained.evaluation.items():
        interval = f"{100 * r['low']:.1f} to {100 * r['high']:.1f}"
        rows.append(
            f"| {for_markdown(attack)} | {100 * r['accuracy']:.1f} | {interval} | {r['n']:,} | "
            f"{for_markdown(json.dumps(r['params']))} |"
        )
    how = (
        f"the method `{recipe.tables['method']['name']}`, the schedule "
        f"`{recipe.tables['schedule']['name']}`"
    )
    what = (
        f"{for_markdown(recipe.model.name)} trained on {for_markdown(recipe.data.name)} "
        f"against {recipe.ball.norm} perturbations of at most {trained.eps}"
    )
    spent = f"{summary['train_seconds']:.0f} s and {summary['grad_evals']:,} gradient evaluations"
    # The hub links to the data set: own images have none, and `hf/` is our prefix.
    dataset = re.fullmatch(
        r"(?!folder$|parquet$|python$)(?:hf/)?(\w[\w./-]*)(?::.*)?", recipe.data.name
    )
    warnings = [f"- {for_markdown(w)}" for w in trained.warnings]
    shown = [for_markdown(name) for name in trained.classes[:NAMED]]
    more = len(trained.classes) - len(shown)
    names = ", ".join(shown) + (f" and {more} more: `CLASSES` in architecture.py" if more else "")
    kept = (
        "last epoch" if summary["best_epoch"] is None else "best epoch on held-out training images"
    )
    return "\n".join(
        [
            "---",
            "library_name: pytorch",
            "pipeline_tag: image-classification",
            "tags: [adversarial-robustness, adversarial-training, amata]",
            *([f"datasets: [{dataset[1]}]"] if dataset else []),
            "---",
            "",
            f"# {for_markdown(trained.name)}",
            "",
            f"{what}, with {how}, {recipe.train.epochs} epochs, seed {recipe.train.seed}.",
            "",
            "```python",
            "from architecture import load  # needs torch and safetensors",
            "",
            "logits = load()(images)  # float images in [0, 1], of shape (N, C, H, W)",
            "```",
            "",
            f"The {len(trained.classes)} classes are {names}. Images have the shape "
            f"{trained.shape}. `amata.load` reads this folder too.",
            "",
            "| attack | accuracy % | 95% interval | images | parameters |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *warnings,
            f"Training took {spent}. The weights are those of the {kept}. Accuracies under attacks "
            "are upper bounds: a stronger attack may find more.",
            "",
        ]
    )
