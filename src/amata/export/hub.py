"""A folder for the Hugging Face Hub: safetensors weights, config, architecture, model card."""

from pathlib import Path

from amata.export.card import card, code
from amata.export.trained import Trained, sha256_of
from amata.runs.files import save_tensors, write_atomic, write_json


def write_hub(trained: Trained, out: Path) -> None:
    source = trained.architecture(
        '__import__("safetensors.torch", fromlist=["load_file"]).load_file(here / '
        '"model.safetensors")'
    )
    out.mkdir(parents=True, exist_ok=True)
    about = {"recipe": trained.recipe.name, "tables": trained.recipe.deciding()}
    sizes = {"classes": list(trained.classes), "shape": list(trained.shape)}
    weights = out / "model.safetensors"
    save_tensors(weights, trained.weights, about | sizes)
    write_json(out / "config.json", trained.config())
    write_atomic(out / "architecture.py", source.encode())
    write_atomic(out / "README.md", card(trained, _use(sha256_of(weights))).encode())


def _use(sha256: str) -> list[str]:
    return [
        *code(
            "import amata",
            f'model = amata.load("model.safetensors", sha256="{sha256}")  # or its URL',
        ),
        "",
        "`model.classes` and `model.recipe` come with it, and no code of this folder runs. Without "
        "amata, `architecture.py` needs torch and safetensors:",
        "",
        *code("from architecture import load", "model = load()"),
    ]
