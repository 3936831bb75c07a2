"""The model card: README.md of an exported folder, with metadata for the Hugging Face Hub on top.

It says what the run folder knows: how to load the weights, threat model, accuracies with intervals,
recipe, data and their licence, cost and versions. What is not known is left out or called unknown.
Names may be a stranger's: they are escaped.
"""

import json
import re
from typing import Any

from amata.data import DATASETS
from amata.errors import printable
from amata.export.trained import Trained
from amata.recipes.schema import PythonData
from amata.report.escape import for_markdown

NAMED = 100
"""The most class names in a model card."""
TAGS = "adversarial-robustness", "adversarial-training", "amata"


def card(trained: Trained, use: list[str], library: str = "pytorch") -> str:
    """`use` are the lines that say how to load the model, with the `library` that does it."""
    recipe = trained.recipe
    count = f" for {len(trained.classes)} classes" if trained.classes else ""
    lines = [
        "---",
        f"library_name: {library}",
        *_metadata(trained),
        "---",
        "",
        f"# {for_markdown(trained.name)}",
        "",
        f"{for_markdown(recipe.model.name)}{count}, trained on "
        f"{for_markdown(recipe.data.name)} against {recipe.ball.norm} perturbations of at most "
        f"{trained.eps}.",
        "",
        "## Use",
        "",
        *use,
        "",
        *_classes(trained),
        "",
        "## Threat model",
        "",
        f"The attacker knows the network and changes each image by at most {trained.eps} in the "
        f"{recipe.ball.norm} norm, where pixels are in [0, 1].",
        "",
        "## Accuracy",
        "",
        *_accuracy(trained),
        "",
        "## Training",
        "",
        *_training(trained),
        "",
        "## Data",
        "",
        *_data(trained),
        "",
        "## Versions",
        "",
        *_versions(trained),
        "",
    ]
    return "\n".join(lines)


def code(*lines: str) -> list[str]:
    """A block of Python."""
    return ["```python", *lines, "```"]


def _metadata(trained: Trained) -> list[str]:
    """YAML. Texts are written as in JSON, which is YAML too."""
    name, known = trained.recipe.data.name, DATASETS.get(trained.recipe.data.name)
    of_hub = re.fullmatch(r"hf/(\w[\w./-]*)(?::.*)?", name)
    hub = of_hub[1] if of_hub else known and known.hub
    lines = [
        "pipeline_tag: image-classification",
        f"license: {trained.weights_licence or 'unknown'}",
        f"tags: [{', '.join(TAGS)}]",
        *([f"datasets: [{_text(hub)}]"] if hub else []),
    ]
    if not trained.evaluation:
        return lines
    lines += [
        "metrics: [accuracy]",
        "model-index:",
        f"- name: {_text(trained.name)}",
        "  results:",
        "  - task: {type: image-classification}",
        f"    dataset: {{type: {_text(hub or name)}, name: {_text(name)}, split: test}}",
        "    metrics:",
    ]
    for attack, r in trained.evaluation.items():
        lines += [
            "    - type: accuracy",
            f"      name: {_text(f'accuracy, {attack}')}",
            f"      value: {float(r['accuracy'])}",
            f"      args: {_text({'images': r['n'], 'low': r['low'], 'high': r['high']})}",
        ]
    return lines


def _text(value: Any) -> str:
    return json.dumps(printable(value) if isinstance(value, str) else value, ensure_ascii=False)


def _classes(trained: Trained) -> list[str]:
    shown = [for_markdown(name) for name in trained.classes[:NAMED]]
    more = len(trained.classes) - len(shown)
    names = ", ".join(shown) + (f" and {more} more" if more else "")
    return [
        f"Images are floats in [0, 1] of shape (N, {', '.join(map(str, trained.shape))}). "
        + (f"The {len(trained.classes)} classes are {names}." if names else "")
    ]


def _accuracy(trained: Trained) -> list[str]:
    if not trained.evaluation:
        return ["Not measured."]
    rows = [
        f"| {for_markdown(attack)} | {100 * r['accuracy']:.1f} | {100 * r['low']:.1f} to "
        f"{100 * r['high']:.1f} | {r['n']:,} | {for_markdown(json.dumps(r['params']))} | "
        f"{r['grad_evals']:,} |"
        for attack, r in trained.evaluation.items()
    ]
    return [
        "| attack | accuracy % | 95% interval | test images | parameters | gradient evaluations |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *(f"- {for_markdown(warning)}" for warning in trained.warnings),
        *([""] if trained.warnings else []),
        "Accuracies under attacks are upper bounds: a stronger attack may find more. These numbers "
        "are the claim of whoever trained the model; `amata eval` measures them again.",
    ]


def _training(trained: Trained) -> list[str]:
    recipe, summary, found = trained.recipe, trained.summary, trained.environment
    tables = recipe.tables["method"], recipe.tables["schedule"]
    method, schedule = (str(table.get("class", table["name"])) for table in tables)
    if recipe.tables["method"].get("awp"):
        method += " with adversarial weight perturbation"
    kept = "last epoch" if summary["best_epoch"] is None else "best epoch on held-out images"
    own_code = any("class" in table for table in tables)
    in_python = own_code or isinstance(recipe.data, PythonData)
    epochs = summary["epochs"]
    start = " It started from given weights." if trained.pretrained else ""
    device = f" on {for_markdown(found['device'])}" if found else ""
    toml = recipe.to_toml(deciding=True).rstrip()
    # A text of the recipe may hold backticks: the fence is longer.
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", toml))])
    return [
        f"Method {for_markdown(method)}, schedule {for_markdown(schedule)}, "
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'}, seed {recipe.train.seed}.{start} The "
        f"weights are those of the {kept}.",
        "",
        f"Cost: {summary['grad_evals']:,} gradient evaluations "
        f"({summary['grad_evals_per_image']:.2f} per image and epoch), "
        f"{summary['train_seconds']:.1f} seconds{device}.",
        "",
        "The settings of a training written in Python:"
        if in_python
        else "The recipe, for `amata train FILE.toml`:",
        "",
        f"{fence}toml",
        toml,
        fence,
    ]


def _data(trained: Trained) -> list[str]:
    known, split = DATASETS.get(trained.recipe.data.name), trained.split
    about = f": {known.about}" if known and known.licence else ""
    used = [
        f"- {text}: {split[key]:,}"
        for key, text in (("train", "training images"), ("valid", "validation images"))
        if key in split
    ]
    return [
        f"- data set: {for_markdown(trained.recipe.data.name + about)}",
        *used,
        f"- licence of the data: {for_markdown(trained.licence or 'unknown')}",
        f"- licence of these weights: {for_markdown(trained.weights_licence or 'unknown')}",
    ]


def _versions(trained: Trained) -> list[str]:
    found = trained.environment
    if found is None:
        return ["Unknown: the run has no env.json."]
    versions = {**found["packages"], "python": found["python"]}
    if found["commit"]:
        versions["commit"] = found["commit"]
    return [", ".join(f"{for_markdown(k)} {for_markdown(v)}" for k, v in versions.items())]
